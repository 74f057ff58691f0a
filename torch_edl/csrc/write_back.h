// Writes a part of a file to the disk.
#pragma once

#include <cstdint>

namespace edl {

// Writes the bytes [start, start + size) of a file to the disk and waits for the end. Does not
// commit the file system as fdatasync() does, for which appends to other files would wait. Returns
// 0, or the errno.
int write_back(int fd, int64_t start, int64_t size);

}  // namespace edl
