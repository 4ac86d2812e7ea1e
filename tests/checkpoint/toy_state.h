// A toy model as a rank would hold it, with every kind of placement: fused q|k|v, gate|up, row-parallel columns, padded
// vocabulary rows, a replica, and a weight that files keep transposed. Canonical values are a function of key, name and
// element, and whole numbers below 128 in size, which every dtype here holds exactly.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_state.h"
#include "core/log.h"
#include "support/module_tools.h"

namespace megalith::test {

inline at::Tensor canonical_value(const std::string& key, const std::string& name, const std::vector<int64_t>& shape) {
  uint64_t seed = 7;
  for (const char c : key + "/" + name) seed = seed * 131 + static_cast<unsigned char>(c);
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  at::Tensor value = at::empty({numel}, at::kDouble);
  for (int64_t i = 0; i < numel; ++i)
    value.mutable_data_ptr<double>()[i] = std::round(127 * unit_value(seed % 100003, static_cast<uint64_t>(i)));
  return value.view(shape);
}

// Rows [begin, end) of a canonical matrix at row `at` of the local one.
inline Piece rows(const std::string& name, int64_t num_rows, int64_t columns, int64_t begin, int64_t end, int64_t at) {
  return {.name = name,
          .shape = {num_rows, columns},
          .canonical = {{begin, 0}, {end - begin, columns}},
          .local = {{at, 0}, {end - begin, columns}}};
}

// Placements on rank `rank` of `tp` tensor-parallel ranks (1 or 2).
inline std::vector<Placement> toy_placements(int64_t tp, int64_t rank) {
  const int64_t h = 5, d = 3, groups = 2, heads_per_group = 2, f = 14, vocab = 7, padded = 8;
  std::vector<Placement> placements;
  const AxisSet data_axes = {Axis::kDp, Axis::kCp};

  Placement qkv{.local_shape = {groups / tp * (heads_per_group + 2) * d, h}, .pieces = {}, .replica_axes = data_axes};
  int64_t at = 0;
  for (int64_t g = rank * groups / tp; g < (rank + 1) * groups / tp; ++g) {
    const int64_t q = heads_per_group * d;
    qkv.pieces.push_back(rows("layers.0.q_proj.weight", groups * q, h, g * q, (g + 1) * q, at));
    qkv.pieces.push_back(rows("layers.0.k_proj.weight", groups * d, h, g * d, (g + 1) * d, at + q));
    qkv.pieces.push_back(rows("layers.0.v_proj.weight", groups * d, h, g * d, (g + 1) * d, at + q + d));
    at += q + 2 * d;
  }
  placements.push_back(qkv);

  const int64_t part = f / tp;
  placements.push_back({.local_shape = {2 * part, h},
                        .pieces = {rows("layers.0.gate_proj.weight", f, h, rank * part, (rank + 1) * part, 0),
                                   rows("layers.0.up_proj.weight", f, h, rank * part, (rank + 1) * part, part)},
                        .replica_axes = data_axes});

  const int64_t columns = f / tp;
  placements.push_back({.local_shape = {h, columns},
                        .pieces = {{.name = "layers.0.down_proj.weight",
                                    .shape = {h, f},
                                    .canonical = {{0, rank * columns}, {h, columns}},
                                    .local = {{0, 0}, {h, columns}}}},
                        .replica_axes = data_axes});

  const int64_t local_rows = padded / tp, first = rank * local_rows, last = std::min(vocab, first + local_rows);
  Placement embedding{.local_shape = {local_rows, h},
                      .pieces = {rows("embed.weight", vocab, h, first, last, 0)},
                      .replica_axes = data_axes};
  embedding.pieces[0].aliases = {"lm_head.weight"};
  placements.push_back(embedding);

  const int64_t out = 6 / tp;  // the file keeps (in, out)
  placements.push_back({.local_shape = {out, h},
                        .pieces = {{.name = "layers.0.c_fc.weight",
                                    .shape = {h, 6},
                                    .canonical = {{0, rank * out}, {h, out}},
                                    .local = {{0, 0}, {out, h}},
                                    .is_transposed = true}},
                        .replica_axes = data_axes});

  Placement norm = Placement::whole("norm.weight", {h});
  norm.replica_axes = {Axis::kTp, Axis::kDp, Axis::kCp};
  placements.push_back(norm);
  return placements;
}

// The local tensor that the canonical values of `key` give; padding is zero.
inline at::Tensor expected_local(const Placement& placement, const std::string& key, at::ScalarType dtype) {
  at::Tensor local = at::zeros(placement.local_shape, at::TensorOptions().dtype(dtype));
  for (const Piece& piece : placement.pieces) {
    const at::Tensor part = box_view(canonical_value(key, piece.name, piece.shape), piece.canonical);
    box_view(local, piece.local).copy_(piece.is_transposed ? part.t() : part);
  }
  return local;
}

struct ToyKey {
  std::string key;
  at::ScalarType dtype = at::kFloat;
  bool is_sharded = false;     // over dp: each rank a flat range
  std::string value_key = {};  // whose values it has; its own by default
};

// A state and what its tensors should hold.
struct ToyState {
  std::deque<Placement> placements;
  CheckpointState state;
  std::vector<at::Tensor> expected;

  // tp, dp and this rank's coordinates; sharded keys are cut into dp unequal parts.
  ToyState(const std::vector<ToyKey>& keys, int64_t tp = 1, int64_t tp_rank = 0, int64_t dp = 1, int64_t dp_rank = 0) {
    for (Placement& placement : toy_placements(tp, tp_rank)) placements.push_back(std::move(placement));
    for (const ToyKey& key : keys) {
      for (const Placement& placement : placements) {
        at::Tensor whole = expected_local(placement, key.value_key.empty() ? key.key : key.value_key, key.dtype);
        CheckpointTensor tensor{
            .key = key.key, .placement = &placement, .local = {}, .range = {}, .replica_axes = placement.replica_axes};
        if (key.is_sharded) {
          const int64_t n = whole.numel(), cut = n / dp + (dp > 1 ? 1 : 0);  // off the row boundaries
          tensor.range =
              FlatRange{std::min(n, dp_rank * cut), dp_rank + 1 == dp ? n : std::min(n, (dp_rank + 1) * cut)};
          whole = whole.view(-1).narrow(0, tensor.range->begin, tensor.range->end - tensor.range->begin).clone();
          tensor.replica_axes =
              placement.replica_axes.contains(Axis::kTp) ? AxisSet{Axis::kTp, Axis::kCp} : AxisSet{Axis::kCp};
        }
        expected.push_back(whole);
        tensor.local = whole.clone();
        state.tensors.push_back(std::move(tensor));
      }
    }
    state.train = {
        .iteration = 3,
        .consumed_train_samples = 96,
        .optimizer_step = 2,
        .skipped_iterations = 1,
        .seed = 1234,
        .numbers = {{"loss_scale", 65536.0}, {"best", std::numeric_limits<double>::infinity()}, {"lr", 0.1}}};
    state.architecture = {{"num_layers", "1"}, {"hidden_size", "5"}};
    state.configuration = {{"lr", "0.0001"}, {"train_iters", "10"}};
  }

  void clear() {
    for (CheckpointTensor& tensor : state.tensors) tensor.local.fill_(-99);
    state.train = {};
  }
  // "" when every tensor is bit-equal to what it should be.
  std::string first_difference() const {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!at::equal(state.tensors[i].local, expected[i])) {
        return fmt::format("{} of {}", state.tensors[i].key, state.tensors[i].placement->pieces.front().name);
      }
    }
    return "";
  }
};

inline std::vector<ToyKey> optimizer_keys(at::ScalarType model_dtype = at::kBFloat16) {
  return {{"model", model_dtype},
          {"master", at::kFloat, true},
          {"exp_avg", at::kFloat, true},
          {"exp_avg_sq", at::kBFloat16, true}};
}

// A logger whose text the test reads.
struct CapturedLog {
  std::string text;
  Logger log{LoggerSettings{.write = [this](std::string_view line) { text += line; }}};
};

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected: " << part << "\nfound: " << text;
}

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.message() + "\n" + error.remedy();
  }
  return "(no UserError)";
}

}  // namespace megalith::test
