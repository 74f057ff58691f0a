// Forces a part of a file to the disk.
#pragma once

#include <cstdint>

namespace edl {

// Returns when the content of the bytes [start, start + size) of a file has been written, without the
// commit of the file system that fdatasync() makes, for which appends to other files wait. Returns 0,
// or the errno.
int write_back(int fd, int64_t start, int64_t size);

}  // namespace edl
