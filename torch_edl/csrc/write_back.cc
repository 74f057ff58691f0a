#include "write_back.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace edl {

int write_back(int fd, int64_t start, int64_t size) {
#if defined(__linux__)
  constexpr unsigned kAll =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(fd, start, size, kAll) == 0) return 0;
  if (errno != ENOSYS) return errno;
#else
  (void)start;
  (void)size;
#endif
  return fsync(fd) == 0 ? 0 : errno;
}

}  // namespace edl
