// What a worker does with the ids of a batch: find the distinct ones of each server, spread the
// pulled rows over the batch, and sum the gradients of equal ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edl {

struct Partition {
  std::vector<int64_t> unique;   // grouped by owner; in order of first appearance within one
  std::vector<int64_t> offsets;  // shards + 1: where the group of each owner starts
};

// inverse (n): the place in `unique` of each id. n must be below 2^31.
Partition unique_partition(const int64_t* ids, size_t n, uint32_t shards, int64_t* inverse);

// True if two of the ids are equal.
bool has_duplicates(const int64_t* ids, size_t n);

// out[i] = rows[inverse[i]]. Returns false, and stops, at an index outside [0, rows_n).
bool gather(const float* rows, size_t rows_n, const int64_t* inverse, size_t n, size_t dim,
            float* out);

// out[inverse[i]] += grads[i]; out has rows_n rows; false as above.
bool scatter_add(const float* grads, const int64_t* inverse, size_t n, size_t dim, float* out,
                 size_t rows_n);

}  // namespace edl
