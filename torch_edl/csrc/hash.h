// The hash of ids. The upper 32 bits select the server, bits 28-31 the sub-table, and bits 0-27 the
// bucket, so the table of one shard is filled as evenly as a whole table.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Compiled once per instruction set; the version is selected when the module is loaded.
#define EDL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EDL_CLONES
#endif
#define EDL_INLINE inline __attribute__((always_inline))

namespace edl {

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit flips
// every output bit with probability near 1/2.
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline uint64_t hash_id(int64_t id) { return mix64(static_cast<uint64_t>(id)); }

// The owner of an id among `shards` servers: multiply-shift of the upper half, without division.
inline uint32_t owner_of_hash(uint64_t hash, uint32_t shards) {
  return static_cast<uint32_t>(((hash >> 32) * shards) >> 32);
}

inline size_t sub_table_of_hash(uint64_t hash) { return (hash >> 28) & 15; }

}  // namespace edl
