// Boxes of canonical tensors: views, chunks, blocks, runs, and reading them from files.
#include "checkpoint/pieces.h"

#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/tensor_store.h"
#include "core/error.h"
#include "support/temporary_folder.h"
#include "tensor_files/safetensors_writer.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: the toy model's helpers

std::vector<PieceView> toy_views(const std::deque<Placement>& placements, std::vector<at::Tensor>& locals) {
  std::vector<PieceView> views;
  for (const Placement& placement : placements) {
    locals.push_back(expected_local(placement, "model", at::kFloat));
    for (PieceView& view : piece_views(placement, locals.back())) views.push_back(std::move(view));
  }
  return views;
}

void write_tensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  SafetensorsWriter writer(path, make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors)
    writer.write(name, 0, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  writer.finish();
}

TEST(Pieces, ViewsOfOneRankAreTheCanonicalTensors) {
  const auto list = toy_placements(1, 0);
  std::vector<at::Tensor> locals;
  const auto views = toy_views({list.begin(), list.end()}, locals);
  for (const PieceView& view : views) {
    const at::Tensor whole = canonical_value("model", view.piece.name, view.piece.shape).to(at::kFloat);
    EXPECT_TRUE(at::equal(view.tensor, box_view(whole, view.piece.canonical))) << view.piece.name;
  }
}

TEST(Pieces, FusedRowsJoinToWholeTensorsOnOneRank) {
  const auto list = toy_placements(1, 0);
  std::vector<at::Tensor> locals;
  const std::vector<Chunk> chunks = make_chunks(toy_views({list.begin(), list.end()}, locals));
  ASSERT_EQ(chunks.size(), 9u);
  for (const Chunk& chunk : chunks) EXPECT_TRUE(chunk.is_whole()) << chunk.name;
  EXPECT_EQ(chunks[0].name, "layers.0.q_proj.weight");
  EXPECT_EQ(chunks[0].parts.size(), 2u);
}

TEST(Pieces, EveryFlatRangeHoldsItsElementsOnce) {
  // All cuts of every toy tensor in two: together the views of both parts give each canonical element once.
  for (const Placement& placement : toy_placements(2, 1)) {
    const at::Tensor local = expected_local(placement, "model", at::kFloat);
    for (int64_t cut = 0; cut <= local.numel(); ++cut) {
      std::map<std::string, at::Tensor> counts;
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, local.numel()}}) {
        const at::Tensor flat = local.view(-1).narrow(0, begin, end - begin).clone();
        for (const PieceView& view : piece_views(placement, flat, FlatRange{begin, end})) {
          at::Tensor& count = counts[view.piece.name];
          if (!count.defined()) count = at::zeros(view.piece.shape);
          box_view(count, view.piece.canonical).add_(1);
          const at::Tensor whole = canonical_value("model", view.piece.name, view.piece.shape).to(at::kFloat);
          ASSERT_TRUE(at::equal(view.tensor, box_view(whole, view.piece.canonical)))
              << view.piece.name << " cut at " << cut;
        }
      }
      for (const Piece& piece : placement.pieces) {
        ASSERT_TRUE(box_view(counts[piece.name], piece.canonical).eq(1).all().item<bool>())
            << piece.name << " cut at " << cut;
      }
    }
  }
}

TEST(Pieces, BlocksAreRowMajorWhateverTheirSize) {
  const auto list = toy_placements(1, 0);
  std::vector<at::Tensor> locals;
  for (const Chunk& chunk : make_chunks(toy_views({list.begin(), list.end()}, locals))) {
    const at::Tensor whole = canonical_value("model", chunk.name, chunk.shape);
    for (const int64_t max_bytes : {1, 3, 8, 40, 1 << 20}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
        std::vector<at::Tensor> blocks;
        for_each_block(chunk, dtype, max_bytes, [&](const Box&, const at::Tensor& block) {
          EXPECT_TRUE(block.is_contiguous());
          EXPECT_EQ(block.scalar_type(), dtype);
          EXPECT_LE(static_cast<int64_t>(block.nbytes()),
                    std::max<int64_t>(max_bytes, static_cast<int64_t>(c10::elementSize(dtype))));
          blocks.push_back(block.reshape(-1).clone());
        });
        ASSERT_TRUE(at::equal(at::cat(blocks), whole.view(-1).to(dtype)))
            << chunk.name << " in blocks of " << max_bytes;
      }
    }
  }
}

TEST(Pieces, RunsCoverABoxInOrder) {
  const std::vector<int64_t> shape = {3, 4, 5};
  for (const Box& box : {Box{{0, 0, 0}, {3, 4, 5}}, Box{{1, 0, 0}, {2, 4, 5}}, Box{{0, 1, 0}, {3, 2, 5}},
                         Box{{2, 3, 1}, {1, 1, 3}}, Box{{0, 0, 4}, {3, 4, 1}}}) {
    const at::Tensor numbers = at::arange(60).view(shape);
    const at::Tensor expected = box_view(numbers, box).reshape(-1);
    std::vector<int64_t> found;
    for_each_run(shape, box, [&](int64_t in_tensor, int64_t in_box, int64_t count) {
      EXPECT_EQ(in_box, static_cast<int64_t>(found.size()));
      for (int64_t i = 0; i < count; ++i) found.push_back(in_tensor + i);
    });
    EXPECT_TRUE(at::equal(at::tensor(found), expected));
  }
  int num_runs = 0;
  for_each_run(shape, {{1, 0, 0}, {2, 4, 5}}, [&](int64_t, int64_t, int64_t count) { num_runs += count == 40; });
  EXPECT_EQ(num_runs, 1);  // whole rows are one run
  for_each_run({}, {{}, {}}, [&](int64_t begin, int64_t, int64_t count) { EXPECT_EQ(begin + count, 1); });
}

TEST(Pieces, OverlapIsAnInternalError) {
  const Placement placement{.local_shape = {4, 1}, .pieces = {rows("w", 4, 1, 0, 2, 0), rows("w", 4, 1, 1, 3, 2)}};
  EXPECT_THROW(make_chunks(piece_views(placement, at::zeros({4, 1}))), InternalError);
}

TEST(TensorStore, ReadsAnySliceInAnyDtype) {
  const TemporaryFolder folder;
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const Placement& placement : toy_placements(1, 0)) {
      for (const Piece& piece : placement.pieces) {
        const bool is_new =
            std::none_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == piece.name; });
        if (is_new) tensors.emplace_back(piece.name, canonical_value("model", piece.name, piece.shape).to(stored));
      }
    }
    write_tensors(folder.path() / "model.safetensors", tensors);
    const TensorStore store = TensorStore::open_folder(folder.path());
    for (const auto& [tp, rank] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
      for (const Placement& placement : toy_placements(tp, rank)) {
        for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
          at::Tensor local = at::full(placement.local_shape, -99, at::TensorOptions().dtype(wanted));
          read_pieces(store, placement, local);
          EXPECT_TRUE(at::equal(local, expected_local(placement, "model", wanted))) << placement.pieces[0].name;
        }
      }
    }
  }
}

TEST(TensorStore, DecodesFloat8) {
  const TemporaryFolder folder;
  const at::Tensor value = at::tensor({0.5, -2.0, 448.0, 0.0}).to(at::kFloat8_e4m3fn);
  write_tensors(folder.path() / "x.safetensors", {{"w", value}});
  at::Tensor out = at::empty({4});
  TensorStore::open_file(folder.path() / "x.safetensors").read("w", Box::whole({4}), out);
  EXPECT_TRUE(at::equal(out, at::tensor({0.5f, -2.0f, 448.0f, 0.0f})));
}

TEST(TensorStore, RefusesWhatIsNoNumberByItsPlaceInTheWholeTensor) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const auto read = [](const std::string& name, double value, at::ScalarType dtype, Box box,
                       NonfiniteWeights nonfinite) {
    const TemporaryFolder folder;
    at::Tensor whole = at::ones({4, 6}).to(dtype);
    whole[2][5] = value;
    write_tensors(folder.path() / "x.safetensors", {{name, whole}});
    const at::Tensor out = at::empty(box.extent, at::kFloat);
    const PieceView view{.piece = {.name = name, .shape = {4, 6}, .canonical = box, .local = box}, .tensor = out};
    const TensorStore store = TensorStore::open_file(folder.path() / "x.safetensors");
    return message_of([&] { read_pieces(store, {&view, 1}, nonfinite); });
  };
  const Box all = Box::whole({4, 6}), corner{{1, 4}, {2, 2}}, others{{0, 0}, {4, 5}};
  constexpr auto kRefused = NonfiniteWeights::kRefused;
  constexpr const char* kTaken = "(no UserError)";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const Box& box : {all, corner}) {
      const int64_t count = box.num_elements();
      const std::string message = read("w", kNan, dtype, box, kRefused);
      EXPECT_TRUE(contains(message, fmt::format("x.safetensors: w is nan at [2, 5], and 1 of the {} ", count)))
          << message;
      EXPECT_TRUE(contains(read("w", -kInf, dtype, box, kRefused), "w is -inf at [2, 5]"));
      EXPECT_TRUE(contains(read("w", kInf, dtype, box, kRefused), "w is inf at [2, 5]"));
      EXPECT_TRUE(contains(read("router.bias", kInf, dtype, box, kRefused), "is inf at"));
      EXPECT_TRUE(contains(read("router.bias", kNan, dtype, box, kRefused), "is nan at"));
    }
    EXPECT_EQ(read("w", kNan, dtype, others, kRefused), kTaken) << "not in what is read";
    EXPECT_EQ(read("w", kNan, dtype, all, NonfiniteWeights::kAllowed), kTaken);
    // -inf is allowed where it is added to scores: it switches them off.
    for (const char* name : {"router.bias", "self_attn.sinks", "gate.e_score_correction_bias"}) {
      EXPECT_EQ(read(name, -kInf, dtype, all, kRefused), kTaken) << name;
      EXPECT_EQ(read(name, -kInf, dtype, {{2, 5}, {1, 1}}, kRefused), kTaken) << name;
    }
  }
}

TEST(TensorStore, AliasStandsInForTheCanonicalName) {
  const TemporaryFolder folder;
  const Placement embedding = toy_placements(1, 0)[3];
  const at::Tensor value = canonical_value("model", "embed.weight", {7, 5}).to(at::kFloat);
  write_tensors(folder.path() / "model.safetensors", {{"lm_head.weight", value}});
  at::Tensor local = at::full({8, 5}, -99.0f);
  read_pieces(TensorStore::open_folder(folder.path()), embedding, local);
  EXPECT_TRUE(at::equal(local, expected_local(embedding, "model", at::kFloat)));
}

TEST(TensorStore, RefusesFoldersThatDoNotHoldTogether) {
  const TemporaryFolder folder;
  const auto open = [&] { return message_of([&] { TensorStore::open_folder(folder.path()); }); };
  EXPECT_TRUE(contains(message_of([&] { TensorStore::open_folder(folder.path() / "absent"); }), "is not a folder"));
  EXPECT_TRUE(contains(open(), "has neither model.safetensors nor"));
  folder.write("pytorch_model.bin", "x");
  EXPECT_TRUE(contains(open(), "pickled weights are not read"));
  write_tensors(folder.path() / "one.safetensors", {{"a", at::ones({2})}});
  write_tensors(folder.path() / "two.safetensors", {{"b", at::ones({2})}});
  write_tensors(folder.path() / "three.safetensors", {{"a", at::ones({2})}});
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  };
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_EQ(TensorStore::open_folder(folder.path()).entries().size(), 2u);
  index(R"({"a":"one.safetensors","b":"four.safetensors"})");
  EXPECT_TRUE(contains(open(), "names 1 files that are not there: four.safetensors"));
  index(R"({"a":"one.safetensors","b":"three.safetensors"})");
  EXPECT_TRUE(contains(open(), "a is both in"));
  index(R"({"c":"one.safetensors"})");
  EXPECT_TRUE(contains(open(), "c is said to be in one.safetensors"));
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "", ".."}) {
    index(fmt::format(R"({{"a":"{}"}})", outside));
    EXPECT_TRUE(contains(open(), "is not the name of a file in this folder"));
  }
  index("[1]");
  EXPECT_TRUE(contains(open(), "weight_map is no object"));
}

}  // namespace
}  // namespace megalith
