// An embedding table: id -> (weights, optimizer slots, count and time of updates).
//
// Weights may be stored in 16 or 8 bits; slots and all arithmetic are float32. An update rounds such
// weights stochastically, as a pure function of (id, update), so a replayed journal gives the same
// weights as the first run.
//
// Bits of the hash assign ids to sub-tables, so that growing and sweeping block only a part of the
// table. A sub-table is a linear-probing array of (id, row) buckets. An empty bucket has no row, so
// every int64 is a valid id. Rows are in slabs that never move. A batch takes each lock once and
// accesses memory in two prefetched passes, buckets and then rows. (A batch of more than some
// thousand ids releases the locks in between.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "counters.h"
#include "initializer.h"
#include "numerics.h"
#include "optimizer.h"
#include "pages.h"
#include "row_layout.h"
#include "saved_rows.h"
#include "slab_file.h"

namespace edl {

// Metadata of a row, stored after its values and slots.
struct RowMeta {
  int64_t id;
  int64_t last_used;  // last update of the table that used the row
  uint32_t count;     // number of updates that used the row
  uint32_t epoch;     // number of the newest snapshot with the row (no epoch of training);
                      // kFree: the row has no id
};

struct TableOptions {
  int64_t num_embeddings = 0;  // ids are in [0, num_embeddings); 0: any int64
  int64_t min_count = 0;       // number of updates with an id from which the id has a row
  int64_t max_age = 0;         // evict() removes rows unused for more updates than this; 0: none
  int64_t max_rows = 0;        // evict() removes the least recently used rows beyond; 0: no bound
  int64_t max_bytes = 0;       // the same bound in bytes of rows and buckets; 0: none
  Dtype dtype = Dtype::kFloat;  // type of the weights in memory
  std::string folder;           // of the file with the rows; empty: in memory
};

// Rows as flat arrays, returned by a snapshot and accepted by load().
struct Chunk {
  int64_t* ids;
  float* vectors;  // (n, dim)
  float* slots;    // (n, slots, dim)
  int64_t* last_used;
  int64_t* count;
};

// Ids without a row and their counts, as flat arrays.
struct CountChunk {
  int64_t* ids;
  int64_t* count;
  int64_t* last_used;
};

// Thread-safe, except for the constructor and the snapshot calls, which one thread must make.
class Table {
 public:
  Table(std::string name, size_t dim, const std::string& initializer,
        const std::map<std::string, double>& initializer_args, int64_t seed,
        const Optimizer* optimizer, TableOptions options);

  // out: (n, dim) numbers of type `as`, at any address. An id without a row gets its initial
  // values. A row is created unless read_only is true or the id is still counted.
  void pull(const int64_t* ids, size_t n, char* out, Dtype as, bool read_only);
  // Updates the row of each id; gradients of equal ids are summed first. An id with fewer than
  // min_count updates is only counted, and its gradient is dropped. If an id is out of range or the
  // table is frozen, throws std::invalid_argument without any change.
  void push(const int64_t* ids, const float* grads, size_t n, double lr, int64_t step);
  // Reads the rows of a push of these ids from the disk, and makes room for those that it creates.
  // Throws std::system_error if the disk is full. Does nothing for a table in memory.
  void prepare(const int64_t* ids, size_t n);
  // Throws std::invalid_argument naming the first id outside [0, num_embeddings).
  void check_ids(const int64_t* ids, size_t n) const;
  // Sets rows. Missing slots get the optimizer's initial values, missing last_used and count are 0.
  void load(const Chunk& rows, size_t n);
  // Sets the counts of ids without a row; does nothing if the table does not count.
  void load_counts(const CountChunk& counts, size_t n);
  // Removes rows beyond the bound, least recently used first. A call with `aged` starts a round
  // that also removes rows not used in the max_age updates before `step`. Counted ids are removed
  // by the same rules, with the same bound. Returns the removed ids. One call does a part of the
  // work, some milliseconds, so that no push waits longer; call it after each push. While another
  // thread evicts, a call does nothing. A frozen table keeps its rows.
  std::vector<int64_t> evict(int64_t step, bool aged);
  // Removes the rows or the counts of these ids; ids without either are ignored.
  void remove(const int64_t* ids, size_t n);
  // Largest number of rows, and of counted ids, that evict() leaves; 0: no limit.
  size_t bound() const { return bound_; }

  // A snapshot contains the rows as of begin_snapshot(), which takes microseconds. Each row is
  // copied once: by next_chunk(), or just before it changes.
  void begin_snapshot();
  // Upper bound of the number of rows that next_chunk() will still return.
  size_t snapshot_left() const;
  // Copies up to `most` rows and returns their number; 0 at the end.
  size_t next_chunk(size_t most, const Chunk& out);
  // The same for counted ids.
  size_t counts_left() const;
  size_t next_counts(size_t most, const CountChunk& out);
  void end_snapshot();

  // Copies up to `most` current rows in memory order, starting at `cursor` (0: the first row).
  // Returns their number, and moves the cursor behind them, or to -1 at the end. A row that exists
  // all the time is returned once, whatever else changes between two calls. Throws
  // std::invalid_argument for an invalid cursor.
  size_t scan(int64_t* cursor, size_t most, int64_t* ids, float* vectors) const;
  // Returns up to `most` rows with the most updates, as (number of updates, id), most updates first.
  // Visits the metadata of all rows, some hundred rows under one lock.
  std::vector<std::pair<uint32_t, int64_t>> most_updated(size_t most) const;

  size_t size() const;
  // Number of ids that are counted and have no row.
  size_t counted() const { return counted_.load(std::memory_order_relaxed); }
  // Bytes of rows, counts and buckets; of these, bytes on the disk.
  size_t bytes() const;
  size_t disk_bytes() const { return file_ ? file_->bytes() : 0; }
  const std::string& name() const { return name_; }
  size_t dim() const { return dim_; }
  size_t slots() const { return slots_; }
  // True if the table takes no gradients.
  bool frozen() const { return !optimizer_; }

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
    size_t rows_used = 0;      // rows taken from the slabs so far
    std::vector<char*> free;   // rows that eviction released
    std::vector<float> scratch;  // (dim) values of the row being created
    // Snapshot: rows below `limit` existed at begin_snapshot(); those below `cursor` were visited.
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

  RowMeta& meta(char* row) const {
    return *reinterpret_cast<RowMeta*>(file_ ? file_->meta(row) : row + layout_.meta_at);
  }
  float* slot(char* row, size_t k) const {
    return reinterpret_cast<float*>(row + layout_.slots_at) + k * dim_;
  }
  // Converts the values of a row to another type. scratch: dim floats.
  void convert(const char* row, char* to, Dtype as, float* scratch) const;
  // Writes the initial values of an id, in the type of the table. scratch: dim floats.
  void begin_row(int64_t id, char* to, float* scratch) const;
  char* row_at(const SubTable& sub, size_t index) const {
    return sub.slabs[index / kSlabRows] + index % kSlabRows * spacing_;
  }
  // Convert shorter rows to float32 for an update, and back by stochastic rounding. values: (n,
  // dim).
  void widen_rows(char* const* rows, size_t n, float* values) const;
  void round_rows(char* const* rows, size_t n, const float* values, int64_t step) const;
  // What visit() does about ids without a row.
  enum class Missing {
    kSkip,
    kAddIfRoom,  // creates rows, unless the disk is full
    kAdd,        // creates rows; throws std::system_error if the disk is full
  };
  // Creates the row of an id that has none. Returns nullptr if `missing` is kAddIfRoom and the disk
  // is full.
  char* insert(SubTable& sub, int64_t id, uint64_t hash, Missing missing);
  // Makes room for this number of new rows; false if the disk is full.
  bool make_room(SubTable& sub, size_t rows);
  // Reads the rows of these ids from the disk into memory, before the locks are taken to use them.
  void warm(const int64_t* ids, size_t n);
  // Reads the rows from index `at` on from the disk into memory, before they are copied.
  void warm_next(const SubTable& sub, size_t at, size_t rows) const;
  // Copies a row with its metadata, as `layout_` says. to: layout_.stride bytes.
  void copy_whole(const char* row, char* to) const;
  // Counts an id without a row. Creates the row, with a count of one update less, if that is
  // enough.
  char* admit(SubTable& sub, int64_t id, int64_t step);
  void grow(SubTable& sub);
  void erase(SubTable& sub, int64_t id);
  // Removes the row of its id and keeps the memory for another row.
  void release(SubTable& sub, char* row);
  size_t bound_of(const TableOptions& options) const;
  // Eviction: a hand moves over the entries of all sub-tables, as in the clock algorithm.
  struct Hand {
    size_t sub = 0;
    size_t at = 0;
    size_t aging_left = 0;   // sub-tables that the round for max_age must still visit
    bool shrinking = false;  // true from exceeding the bound until enough entries are removed
  };
  struct RowEntries;
  struct CounterEntries;
  template <typename Entries>
  void evict_from(Entries entries, Hand& hand, int64_t step, bool aged,
                  std::vector<int64_t>& removed);
  struct Oldest {
    int64_t last_used;  // entries used before this update are removed,
    size_t ties;        // and this number of entries last used by this update
  };
  // Returns the time of last use that separates the `excess` least recently used entries.
  template <typename Entries>
  Oldest oldest(Entries entries, size_t excess);
  // Copies the row to the current snapshot, if the snapshot lacks it.
  void before_change(SubTable& sub, char* row);
  // Copy up to `most` whole rows of the snapshot: rows saved before a change, or rows at the
  // cursor.
  size_t take_saved(SubTable& sub, size_t most, char* to);
  size_t take_next(SubTable& sub, size_t most, char* to);
  // Lets waiting pulls and pushes take the locks; called between two short locks.
  void give_way() const;
  void emit(const char* row, const Chunk& out, size_t at) const;
  // Prefetches the counters of ids without a row.
  void prefetch_counters(const int64_t* ids, const Found* found, size_t n) const;
  template <typename Work>
  void visit(const int64_t* ids, size_t n, size_t touched, Missing missing, Work work);

  const std::string name_;
  const size_t dim_;
  const Initializer initializer_;
  const std::optional<Optimizer> optimizer_;
  const TableOptions options_;
  const size_t slots_;
  const RowLayout layout_;
  const uint32_t enough_;  // number of updates with an id from which the id is trained
  const bool counts_;      // true if ids are counted before they get a row
  const std::unique_ptr<SlabFile> file_;  // nullptr if the rows are in memory
  const size_t spacing_;                  // distance between two rows of a slab
  SlabArena arena_;
  SlabArena counter_arena_{Counters::kSlabBytes, kSubTables};
  std::array<SubTable, kSubTables> subs_;
  const size_t bound_;
  std::atomic<int64_t> step_{0};  // newest update, stored as last use of pulled rows
  std::atomic<size_t> rows_{0};
  std::atomic<size_t> counted_{0};
  std::mutex evicting_;
  Hand row_hand_;
  Hand counter_hand_;
  uint64_t draws_ = 0;
  uint32_t epoch_ = 0;
  std::atomic<int> waiting_{0};  // number of pulls and pushes that wait for the locks
};

}  // namespace edl
