// The canonical element of each element of a part, against the Placement written out element by element.
#include "optim/drawn_runs.h"

#include <gtest/gtest.h>

#include <map>

#include "core/philox.h"

namespace megalith {
namespace {

constexpr int64_t kPadding = -1;

struct Element {
  uint64_t key = 0;
  int64_t index = kPadding;
  bool operator==(const Element&) const = default;
};

// The canonical element of each local one, dim by dim.
std::vector<Element> elements_of(const Placement& placement) {
  std::vector<Element> all(static_cast<size_t>(placement.num_local_elements()));
  for (const Piece& piece : placement.pieces) {
    const size_t dims = piece.local.extent.size();
    const uint64_t key = make_philox_key(0, "rounding." + piece.name);
    for (int64_t i = 0; i < piece.local.num_elements(); ++i) {
      std::vector<int64_t> at(dims);
      int64_t rest = i;
      for (size_t d = dims; d-- > 0;) {
        at[d] = rest % piece.local.extent[d];
        rest /= piece.local.extent[d];
      }
      int64_t local = 0, canonical = 0;
      for (size_t d = 0; d < dims; ++d) {
        local = local * placement.local_shape[d] + piece.local.offset[d] + at[d];
        const size_t from = piece.is_transposed && d + 2 >= dims ? 2 * dims - 3 - d : d;
        canonical = canonical * piece.shape[d] + piece.canonical.offset[d] + at[from];
      }
      all[static_cast<size_t>(local)] = {key, canonical};
    }
  }
  return all;
}

std::vector<Element> elements_of(const std::vector<PartRun>& runs, int64_t count) {
  std::vector<Element> all(static_cast<size_t>(count));
  for (const auto& [range, drawn] : runs) {
    for (int64_t i = 0; i < range.size(); ++i) {
      const int64_t row = i / drawn.columns, column = i % drawn.columns;
      Element& element = all[static_cast<size_t>(range.begin + i)];
      EXPECT_EQ(element.index, kPadding) << "element " << range.begin + i << " is in two runs";
      element = {drawn.key, drawn.first + row * drawn.row_stride + column * drawn.column_stride};
    }
  }
  return all;
}

std::map<std::string, Placement> placements() {
  std::map<std::string, Placement> all;
  all["whole matrix"] = Placement::whole("w", {7, 5});
  all["vector"] = Placement::whole("v", {11});
  all["number"] = Placement::whole("n", {1});
  all["three dims"] = Placement::whole("t", {3, 4, 5});
  Placement& qkv = all["fused, rows of each"];
  qkv.local_shape = {6, 5};
  qkv.pieces.push_back({"q", {8, 5}, Box{{4, 0}, {3, 5}}, Box{{0, 0}, {3, 5}}});
  qkv.pieces.push_back({"k", {4, 5}, Box{{2, 0}, {2, 5}}, Box{{3, 0}, {2, 5}}});
  qkv.pieces.push_back({"v", {4, 5}, Box{{1, 0}, {1, 5}}, Box{{5, 0}, {1, 5}}});
  Placement& columns = all["columns, and padded rows"];
  columns.local_shape = {8, 3};
  columns.pieces.push_back({"w", {6, 9}, Box{{0, 3}, {6, 3}}, Box{{0, 0}, {6, 3}}});
  Placement& side = all["side by side"];
  side.local_shape = {4, 7};
  side.pieces.push_back({"a", {4, 6}, Box{{0, 3}, {4, 3}}, Box{{0, 0}, {4, 3}}});
  side.pieces.push_back({"b", {4, 4}, Box{{0, 0}, {4, 4}}, Box{{0, 3}, {4, 4}}});
  Placement& transposed = all["transposed slice"];
  transposed.local_shape = {3, 6};
  transposed.pieces.push_back({"c", {6, 9}, Box{{0, 3}, {6, 3}}, Box{{0, 0}, {3, 6}}, /*is_transposed=*/true});
  Placement& stack = all["stack of transposed slices"];
  stack.local_shape = {2, 3, 4};
  stack.pieces.push_back({"d", {5, 4, 7}, Box{{2, 0, 3}, {2, 4, 3}}, Box::whole({2, 3, 4}), /*is_transposed=*/true});
  return all;
}

TEST(DrawnRuns, AreTheCanonicalElementsOfEveryPart) {
  for (const auto& [what, placement] : placements()) {
    Parameter parameter("p", placement, {});
    const std::vector<Element> expected = elements_of(placement);
    const int64_t count = placement.num_local_elements();
    EXPECT_EQ(elements_of(drawn_runs({.parameter = &parameter}), count), expected) << what;
    for (int64_t begin = 0; begin < count; ++begin) {
      for (int64_t end = begin + 1; end <= count; ++end) {
        const FlatRange range{begin, end};
        const std::vector<Element> of_range(expected.begin() + begin, expected.begin() + end);
        ASSERT_EQ(elements_of(drawn_runs({.parameter = &parameter, .range = range}), range.size()), of_range)
            << what << " [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(DrawnRuns, APieceThatIsWholeIsOneRun) {
  const std::map<std::string, Placement> all = placements();
  const auto count = [&](const char* what) {
    Parameter parameter("p", all.at(what), {});
    return drawn_runs({.parameter = &parameter}).size();
  };
  for (const char* what : {"whole matrix", "vector", "number", "columns, and padded rows", "transposed slice"}) {
    EXPECT_EQ(count(what), 1u) << what;
  }
  EXPECT_EQ(count("fused, rows of each"), 3u);
}

}  // namespace
}  // namespace megalith
