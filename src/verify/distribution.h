// A tensor's type: on each axis of the mesh, what the ranks hold of it. (ezyang's spmd_types has the same letters.)
//
//   same      equal on all ranks                       its gradient is the same, too
//   shared    equal on all ranks                       its gradient is partial: each rank has a summand
//   varying   a part, or the rank's own                its gradient varies likewise
//   partial   a summand: the tensor is the ranks' sum  its gradient is the same on all ranks
//   any       unknown, or a constant: fits everything
//
// The axes here are finer than a Mesh's: dense and expert view cut the ranks of a stage at different places, and the
// pieces between all cuts are axes of both (tp 2, cp 1, dp 4 with etp 1, ep 4: pieces of 2, 2 and 2 ranks).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/mesh.h"

namespace megalith {

enum class Spread : uint8_t { kAny, kSame, kShared, kVarying, kPartial };  // what two make is the later one
std::string_view text_of(Spread spread);  // "the same on all ranks", …
inline bool is_equal(Spread spread) { return spread == Spread::kSame || spread == Spread::kShared; }
inline bool differs(Spread spread) { return spread > Spread::kShared; }

// How a weight varies: by rows (outputs), by columns (inputs), or as whole matrices (experts).
enum class WeightCut : uint8_t { kNone, kRows, kColumns, kPieces };

using AxisBits = uint32_t;
inline constexpr int kMostTypeAxes = 13;
inline constexpr int kPipelineAxis = kMostTypeAxes - 1;  // only parameters have a type on it

struct Distribution {
  std::array<Spread, kMostTypeAxes> spread{};
  std::array<WeightCut, kMostTypeAxes> cut{};
  std::array<int, kMostTypeAxes> place{};  // what made it so (TypeWatch::place_text)

  void set(AxisBits axes, Spread to, int at);
  bool is_known() const;
};

class TypeAxes {
 public:
  // UserError unless of every two sizes of the chain one divides the other.
  TypeAxes(const Mesh& mesh, int rank);

  int count() const { return static_cast<int>(pieces_.size()); }
  AxisBits of(const AxisSet& axes) const;
  AxisBits of(const std::vector<int>& ranks) const;  // along which they differ from this one
  AxisBits all() const { return (AxisBits{1} << count()) - 1; }
  std::string name(int axis) const;
  int size(int axis) const { return pieces_[static_cast<size_t>(axis)].size; }
  std::string text(AxisBits axes) const;  // "tp, dp"
  // The rank that differs from this one on this axis only, by one.
  int neighbour(int axis) const;

 private:
  struct Piece {
    std::string name;
    int stride = 1, size = 1;
  };
  int local_index(int rank) const;
  AxisBits between(int begin, int end) const;

  Mesh mesh_;
  int rank_, ranks_per_stage_;
  std::vector<Piece> pieces_;
};

// Types of tensors by their storage, so that views share them; a bucket has many.
class TypeStore {
 public:
  // The strongest of what it covers.
  Distribution of(const at::Tensor& tensor) const;
  void set(const at::Tensor& tensor, const Distribution& type);
  struct Run {
    int64_t begin = 0, end = 0;  // bytes of the storage
    Distribution type;
  };
  // The first begins at 0, and they cover the tensor's bytes.
  std::vector<Run> runs(const at::Tensor& tensor) const;
  void set_runs(const at::Tensor& tensor, const std::vector<Run>& runs, int64_t first = 0);

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // prevents reuse of the address
    std::vector<Run> runs;                              // ascending, disjoint
  };
  static void assign(std::vector<Run>& runs, const Run& run);

  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
};

}  // namespace megalith
