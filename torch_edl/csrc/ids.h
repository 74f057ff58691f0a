// Operations of a worker on the ids of a batch: find the unique ids of each server, copy pulled
// rows to their positions, and sum the gradients of equal ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edl {

struct Partition {
  std::vector<int64_t> unique;   // grouped by owner; within a group in order of first appearance
  std::vector<int64_t> offsets;  // (shards + 1) start of the group of each owner
};

// inverse (n): the index in `unique` of each id. n must be below 2^31.
Partition unique_partition(const int64_t* ids, size_t n, uint32_t shards, int64_t* inverse);

// Returns true if two of the ids are equal.
bool has_duplicates(const int64_t* ids, size_t n);

// out[i] = rows[inverse[i]]. Stops and returns false at an index outside [0, rows_n).
bool gather(const float* rows, size_t rows_n, const int64_t* inverse, size_t n, size_t dim,
            float* out);

// out[inverse[i]] += grads[i]; out has rows_n rows. Stops and returns false as gather() does.
bool scatter_add(const float* grads, const int64_t* inverse, size_t n, size_t dim, float* out,
                 size_t rows_n);

}  // namespace edl
