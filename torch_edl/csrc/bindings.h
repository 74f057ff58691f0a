// The parts of the bindings that are in files of their own.
#pragma once

#include <pybind11/pybind11.h>

void bind_calls(pybind11::module_& m);
void bind_client(pybind11::module_& m);
void bind_ids(pybind11::module_& m);
void bind_requests(pybind11::module_& m);
void bind_shared_memory(pybind11::module_& m);
void bind_text(pybind11::module_& m);
