// An embedding table: id -> (weights, optimizer slots, how often and when it was updated).
//
// Weights may be kept in 16 bits; slots and all arithmetic are in float32. An update rounds them up
// or down by chance, which is a pure function of (id, update): a replayed journal ends where the
// first run did.
//
// Ids are spread by hash bits over sub-tables, so that growing and sweeping stop the table for a
// part of it only. Each is a linear-probing array of (id, row) buckets - an empty one has no row, so
// every int64 is a legal id - over rows in slabs that never move. A batch takes each lock once and
// touches memory in two prefetched passes, buckets and then rows. (One of more than some thousand
// ids gives the locks up in between.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "counters.h"
#include "initializer.h"
#include "numerics.h"
#include "optimizer.h"
#include "pages.h"
#include "row_layout.h"
#include "saved_rows.h"

namespace edl {

// What stands behind the numbers of each row.
struct RowMeta {
  int64_t id;
  int64_t last_used;  // update of the table that used it last
  uint32_t count;     // updates that named it
  uint32_t epoch;     // snapshot that has it already; kFree: the row belongs to no id
};

struct TableOptions {
  int64_t num_embeddings = 0;  // ids are in [0, num_embeddings); 0: any int64
  int64_t min_count = 0;       // an id has a row from the min_count-th update that names it on
  int64_t max_age = 0;         // evict() removes rows unused for more updates than this; 0: none
  int64_t max_rows = 0;        // evict() removes the least recently used rows beyond; 0: no bound
  int64_t max_bytes = 0;       // the same bound, as memory of rows and buckets; 0: none
  Dtype dtype = Dtype::kFloat;  // of the weights in memory
};

// Rows as flat arrays: what a snapshot yields and load() takes.
struct Chunk {
  int64_t* ids;
  float* vectors;  // (n, dim)
  float* slots;    // (n, slots, dim)
  int64_t* last_used;
  int64_t* count;
};

// Ids without a row that min_count counts, as flat arrays.
struct CountChunk {
  int64_t* ids;
  int64_t* count;
  int64_t* last_used;
};

// Thread-safe, but for set-up (the constructor) and the snapshot calls, which one thread makes.
class Table {
 public:
  Table(std::string name, size_t dim, const std::string& initializer,
        const std::map<std::string, double>& initializer_args, int64_t seed,
        const Optimizer* optimizer, TableOptions options);

  // out: (n, dim) numbers of type `as`, at any address. An id without a row gets its initial values,
  // and a row unless read_only or the id is still counted.
  void pull(const int64_t* ids, size_t n, char* out, Dtype as, bool read_only);
  // Updates the row of each id; gradients of equal ids are summed first. An id that came less than
  // min_count times is counted, in 16 bytes and an index, and its gradient is dropped. Throws
  // std::invalid_argument, having changed nothing, if an id is out of range or the table is frozen.
  void push(const int64_t* ids, const float* grads, size_t n, double lr, int64_t step);
  // Throws std::invalid_argument naming the first id outside [0, num_embeddings).
  void check_ids(const int64_t* ids, size_t n) const;
  // Sets rows. slots == nullptr: they start as the optimizer's; last_used and count: as zero.
  void load(const Chunk& rows, size_t n);
  // Sets the counts of ids that have no row; a table that does not count leaves them.
  void load_counts(const CountChunk& counts, size_t n);
  // Removes rows beyond the bound, least recently used first, and, in the round that a call with
  // `aged` begins, rows not used in the max_age updates before `step`; and the same of ids that are
  // counted, whose bound is the same number. Returns the ids. One call does a part of the work, some
  // milliseconds, so that no push waits longer: call it after each push. While another thread is at
  // it, a call does nothing. A frozen table keeps its rows.
  std::vector<int64_t> evict(int64_t step, bool aged);
  // Removes the rows, or the counts, of these ids; an id that has neither is no error.
  void remove(const int64_t* ids, size_t n);
  // Rows that evict() leaves, and so many counted ids; 0: any number.
  size_t bound() const { return bound_; }

  // A snapshot holds the rows as they are at begin_snapshot(), which takes microseconds. Each row is
  // copied once: by next_chunk(), or before that by whoever is about to change it.
  void begin_snapshot();
  // Upper bound of the rows that are still to come.
  size_t snapshot_left() const;
  // Up to `most` rows; 0 when all were given.
  size_t next_chunk(size_t most, const Chunk& out);
  // The same of the ids that are counted.
  size_t counts_left() const;
  size_t next_counts(size_t most, const CountChunk& out);
  void end_snapshot();

  // Up to `most` rows as they are now, in the order in which they lie, from `cursor` on (0: the
  // first one); returns how many, and moves the cursor behind them, to -1 at the end. A row that
  // exists all the time is given once, whatever else changes between two calls. Throws
  // std::invalid_argument for a cursor that no call gave.
  size_t scan(int64_t* cursor, size_t most, int64_t* ids, float* vectors) const;

  size_t size() const;
  // Ids that are counted and have no row.
  size_t counted() const { return counted_.load(std::memory_order_relaxed); }
  size_t bytes() const;
  const std::string& name() const { return name_; }
  size_t dim() const { return dim_; }
  size_t slots() const { return slots_; }
  int64_t num_embeddings() const { return options_.num_embeddings; }

 private:
  static constexpr size_t kSubTables = 16;
  static constexpr size_t kSlabRows = 4096;
  static constexpr size_t kWalk = 512;  // entries that a sweep visits under one lock
  static constexpr size_t kMaxCapacity = size_t{1} << 28;  // bits of the hash that choose a bucket
  static constexpr uint32_t kFree = 0xffffffffu;

  struct Bucket {
    int64_t id;
    char* row;  // nullptr: empty
  };

  struct alignas(64) SubTable {
    mutable std::mutex lock;
    Pages pages;
    Bucket* buckets = nullptr;
    size_t mask = 0;  // capacity - 1
    size_t size = 0;
    std::vector<char*> slabs;
    size_t rows_used = 0;      // rows ever taken from the slabs
    std::vector<char*> free;   // rows that eviction gave back
    std::vector<float> scratch;  // (dim) the row that is made
    // Snapshot: rows below `limit` existed at the cut, those below `cursor` were visited.
    bool saving = false;
    uint32_t epoch = 0;
    size_t limit = 0;
    size_t cursor = 0;
    SavedRows saved;
    Counters counters;
  };

  struct Found {
    char* row;
    SubTable* sub;
  };

  RowMeta& meta(char* row) const { return *reinterpret_cast<RowMeta*>(row + layout_.meta_at); }
  float* slot(char* row, size_t k) const {
    return reinterpret_cast<float*>(row + layout_.slots_at) + k * dim_;
  }
  // The values of a row as numbers of another type. scratch: dim floats.
  void convert(const char* row, char* to, Dtype as, float* scratch) const;
  // The values that an id without a row has, as they would be kept in it. scratch: dim floats.
  void begin_row(int64_t id, char* to, float* scratch) const;
  char* row_at(const SubTable& sub, size_t index) const {
    return sub.slabs[index / kSlabRows] + index % kSlabRows * layout_.stride;
  }
  // Rows that are kept in 16 bits, to float32 for an update, and back by chance. values: (n, dim).
  void widen_rows(char* const* rows, size_t n, float* values) const;
  void round_rows(char* const* rows, size_t n, const float* values, int64_t step) const;
  // Makes the row of an id that has none.
  char* insert(SubTable& sub, int64_t id, uint64_t hash);
  // Counts an id that has no row; makes the row, which counts one update less, if that is enough.
  char* admit(SubTable& sub, int64_t id, int64_t step);
  void grow(SubTable& sub);
  void erase(SubTable& sub, int64_t id);
  // Takes the row from its id, and keeps its memory for the next one.
  void release(SubTable& sub, char* row);
  size_t bound_of(const TableOptions& options) const;
  // Eviction: a hand goes round over the entries of all sub-tables, as in the clock algorithm.
  struct Hand {
    size_t sub = 0;
    size_t at = 0;
    size_t aging_left = 0;   // sub-tables that the round for max_age still has to visit
    bool shrinking = false;  // the bound was exceeded, and some room is still to be made
  };
  struct RowEntries;
  struct CounterEntries;
  template <typename Entries>
  void evict_from(Entries entries, Hand& hand, int64_t step, bool aged,
                  std::vector<int64_t>& removed);
  struct Oldest {
    int64_t last_used;  // entries used before this update go,
    size_t ties;        // and so many of those used last by this one
  };
  // The time of last use that parts the `excess` least recently used entries from the others.
  template <typename Entries>
  Oldest oldest(Entries entries, size_t excess);
  // Copies the row to the snapshot in progress, if that lacks it.
  void before_change(SubTable& sub, char* row);
  // Up to `most` whole rows of the snapshot: what writers saved, and what lies at the cursor.
  size_t take_saved(SubTable& sub, size_t most, char* to);
  size_t take_next(SubTable& sub, size_t most, char* to);
  // Lets pulls and pushes that wait for a sub-table have it; called between two short locks.
  void give_way() const;
  void emit(const char* row, const Chunk& out, size_t at) const;
  // Fetches what counts the ids without a row.
  void prefetch_counters(const int64_t* ids, const Found* found, size_t n) const;
  template <typename Work>
  void visit(const int64_t* ids, size_t n, size_t touched, bool add, Work work);

  const std::string name_;
  const size_t dim_;
  const Initializer initializer_;
  const std::optional<Optimizer> optimizer_;
  const TableOptions options_;
  const size_t slots_;
  const RowLayout layout_;
  const uint32_t enough_;  // updates that name an id before it is trained
  const bool counts_;      // ids are counted before they have a row
  SlabArena arena_;
  SlabArena counter_arena_{Counters::kSlabBytes, kSubTables};
  std::array<SubTable, kSubTables> subs_;
  const size_t bound_;
  std::atomic<int64_t> step_{0};  // newest update, for rows that are pulled
  std::atomic<size_t> rows_{0};
  std::atomic<size_t> counted_{0};
  std::mutex evicting_;
  Hand row_hand_;
  Hand counter_hand_;
  uint64_t draws_ = 0;
  uint32_t epoch_ = 0;
  std::atomic<int> waiting_{0};  // pulls and pushes that wait for sub-tables
};

}  // namespace edl
