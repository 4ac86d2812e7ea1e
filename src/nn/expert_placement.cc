#include "nn/expert_placement.h"

#include "core/error.h"

namespace megalith {
namespace {

void add_run(Placement& bias, const std::string& name, int64_t size, int64_t first, int64_t count) {
  bias.pieces.push_back(
      {.name = name, .shape = {size}, .canonical = {{first}, {count}}, .local = {{bias.local_shape[0]}, {count}}});
  bias.local_shape[0] += count;
}

ExpertPlacements placements_of_each(const ExpertCut& cut, const ExpertNames& names) {
  const int64_t h = cut.hidden, columns = cut.num_columns;
  ExpertPlacements all;
  all.up.local_shape = {0, h};
  all.down.local_shape = {cut.num_local * h, columns};
  all.up_bias.local_shape = all.down_bias.local_shape = {0};
  for (int64_t j = 0; j < cut.num_local; ++j) {
    const std::string expert = fmt::format("{}.{}.", cut.name, cut.first_expert + j);
    const auto add_rows = [&](const std::string& linear) {
      const int64_t row = all.up.local_shape[0];
      all.up.pieces.push_back({.name = expert + linear + ".weight",
                               .shape = {cut.ffn, h},
                               .canonical = {{cut.first_column, 0}, {columns, h}},
                               .local = {{row, 0}, {columns, h}}});
      all.up.local_shape[0] += columns;
      add_run(all.up_bias, expert + linear + ".bias", cut.ffn, cut.first_column, columns);
    };
    if (cut.is_gated) add_rows(names.gate);
    add_rows(names.up);
    all.down.pieces.push_back({.name = expert + names.down + ".weight",
                               .shape = {h, cut.ffn},
                               .canonical = {{0, cut.first_column}, {h, columns}},
                               .local = {{j * h, 0}, {h, columns}}});
    add_run(all.down_bias, expert + names.down + ".bias", h, cut.first_bias_column, cut.num_bias_columns);
  }
  return all;
}

Box box_of_experts(int64_t first_expert, int64_t num_experts, std::vector<int64_t> offset,
                   std::vector<int64_t> extent) {
  offset.insert(offset.begin(), first_expert);
  extent.insert(extent.begin(), num_experts);
  return {std::move(offset), std::move(extent)};
}

ExpertPlacements placements_of_stacks(const ExpertCut& cut, const ExpertNames& names) {
  MEGALITH_CHECK(cut.is_gated, "{}: only gated experts are kept in one tensor", cut.name);
  const int64_t e = cut.num_local, h = cut.hidden, columns = cut.num_columns;
  const auto place = [&](const std::string& name, std::vector<int64_t> shape, Box canonical, bool is_matrix) {
    Placement placement{.local_shape = canonical.extent};
    if (is_matrix) std::swap(placement.local_shape[1], placement.local_shape[2]);
    shape.insert(shape.begin(), cut.num_experts);
    placement.pieces.push_back({.name = cut.name + "." + name,
                                .shape = std::move(shape),
                                .canonical = std::move(canonical),
                                .local = Box::whole(placement.local_shape),
                                .is_transposed = is_matrix});
    return placement;
  };
  const auto box = [&](std::vector<int64_t> offset, std::vector<int64_t> extent) {
    return box_of_experts(cut.first_expert, e, std::move(offset), std::move(extent));
  };
  // If interleaved, a part of an expert's width is one run; otherwise two.
  ExpertPlacements all{
      .up = place(names.stacked_gate_up, {h, 2 * cut.ffn}, box({0, 2 * cut.first_column}, {h, 2 * columns}), true),
      .down = place(names.stacked_down, {cut.ffn, h}, box({cut.first_column, 0}, {columns, h}), true),
      .up_bias =
          place(names.stacked_gate_up + "_bias", {2 * cut.ffn}, box({2 * cut.first_column}, {2 * columns}), false),
      .down_bias =
          place(names.stacked_down + "_bias", {h}, box({cut.first_bias_column}, {cut.num_bias_columns}), false)};
  if (names.are_interleaved) return all;
  all.up.pieces.clear();
  for (const int64_t part : {0, 1}) {
    all.up.pieces.push_back({.name = cut.name + "." + names.stacked_gate_up,
                             .shape = {cut.num_experts, h, 2 * cut.ffn},
                             .canonical = box({0, part * cut.ffn + cut.first_column}, {h, columns}),
                             .local = {{0, part * columns, 0}, {e, columns, h}},
                             .is_transposed = true});
  }
  return all;
}

}  // namespace

ExpertPlacements expert_placements(const ExpertCut& cut, const ExpertNames& names) {
  return names.are_stacked() ? placements_of_stacks(cut, names) : placements_of_each(cut, names);
}

}  // namespace megalith
