// Python bindings for memory that processes share. Arrays in the memory keep it mapped.
#include "bindings.h"

#include <memory>
#include <string>

#include "arrays.h"
#include "received_call.h"

namespace py = pybind11;
using edl::SharedMemory;
using edl::ssize;
using edl::View;
using edl::Bytes;
using edl::Memory;

namespace {

struct Region {
  Memory memory;
  size_t at;
  size_t bytes;
  bool owned;  // to be released with the last array
};

Bytes array_at(const Memory& memory, size_t at, size_t bytes, bool owned) {
  const py::capsule end(new Region{memory, at, bytes, owned}, [](void* p) {
    const std::unique_ptr<Region> region(static_cast<Region*>(p));
    if (region->owned) region->memory->release(region->at, region->bytes);
  });
  return Bytes(ssize(bytes), reinterpret_cast<const uint8_t*>(memory->data() + at), end);
}

py::object allocate(const Memory& memory, size_t bytes) {
  const ptrdiff_t at = memory->allocate(bytes);
  if (at < 0) return py::none();
  return edl::region(memory, static_cast<size_t>(at), bytes);
}

Bytes view(const Memory& memory, int64_t at, int64_t bytes) {
  const auto size = static_cast<int64_t>(memory->size());
  if (at < 0 || bytes < 0 || at > size || bytes > size - at) {
    throw py::value_error("bytes " + std::to_string(at) + " to " + std::to_string(at) + " + " +
                          std::to_string(bytes) + ": the shared memory has " +
                          std::to_string(size));
  }
  return array_at(memory, static_cast<size_t>(at), static_cast<size_t>(bytes), false);
}

ptrdiff_t position(const SharedMemory& memory, py::handle buffer) {
  const View given(buffer);
  return memory.position(given.data(), given.size());
}

}  // namespace

Bytes edl::region(const Memory& memory, size_t at, size_t bytes) {
  return array_at(memory, at, bytes, true);
}

void bind_shared_memory(py::module_& m) {
  py::class_<SharedMemory, Memory>(m, "SharedMemory")
      .def(py::init<size_t>(), py::arg("bytes"))
      .def_static("open", [](const std::string& path) { return std::make_shared<SharedMemory>(path); },
                  py::arg("path"))
      .def_property_readonly("file", &SharedMemory::file)
      .def_property_readonly("size", &SharedMemory::size)
      .def("allocate", &allocate, py::arg("bytes"))
      .def("view", &view, py::arg("at"), py::arg("bytes"))
      .def("position", &position, py::arg("buffer"));
}
