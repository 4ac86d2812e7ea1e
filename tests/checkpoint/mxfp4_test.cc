// MXFP4 as gpt-oss's files have it: any box of the tensor that blocks and scales are, and what does not fit is named.
#include "checkpoint/mxfp4.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/hf.h"
#include "core/error.h"
#include "support/temporary_folder.h"
#include "tensor_files/safetensors_writer.h"
#include "toy_state.h"

namespace megalith {
namespace {

using namespace test;  // NOLINT: helpers

constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

struct PackedExperts {
  at::Tensor blocks, scales;  // (e, columns, g, 16) and (e, columns, g) bytes
  at::Tensor decoded;         // (e, 32 g, columns) float32
};

// Every byte, and scales from the smallest to large ones.
PackedExperts packed_experts(int64_t experts, int64_t columns, int64_t groups) {
  PackedExperts packed;
  packed.blocks = at::arange(experts * columns * groups * 16, at::kLong)
                      .mul(37)
                      .remainder(256)
                      .to(at::kByte)
                      .view({experts, columns, groups, 16});
  packed.scales = at::arange(experts * columns * groups, at::kLong)
                      .mul(11)
                      .remainder(230)
                      .to(at::kByte)
                      .view({experts, columns, groups});
  packed.decoded = at::empty({experts, 32 * groups, columns});
  for (int64_t i = 0; i < packed.blocks.numel(); ++i) {
    const int64_t block = i / 16, expert = block / (columns * groups), column = block / groups % columns;
    for (int64_t half = 0; half < 2; ++half) {
      const int code = packed.blocks.const_data_ptr<uint8_t>()[i] >> (4 * half) & 15;
      const double value = kMagnitudes[code % 8] * (code < 8 ? 1 : -1);
      packed.decoded[expert][block % groups * 32 + i % 16 * 2 + half][column] =
          std::ldexp(value, packed.scales.const_data_ptr<uint8_t>()[block] - 127);
    }
  }
  return packed;
}

void write_packed_tensors(const std::filesystem::path& path, const TensorMap& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, make_safetensors_layout(std::move(entries)));
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, 0, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.finish();
}

TEST(Mxfp4, AnyBoxOfTheExpertsIsRead) {
  const TemporaryFolder folder;
  const PackedExperts packed = packed_experts(3, 5, 2);
  write_packed_tensors(folder.path() / "model.safetensors",
                       {{"up_blocks", packed.blocks}, {"up_scales", packed.scales}, {"up_bias", at::ones({3, 5})}});
  folder.write("config.json", R"({"quantization_config": {"quant_method": "mxfp4"}})");
  const TensorStore store = open_hf_weights(folder.path()).store;
  EXPECT_EQ(store.find("up")->shape, (std::vector<int64_t>{3, 64, 5}));
  for (const Box& box : {Box::whole({3, 64, 5}), Box{{1, 0, 0}, {2, 64, 5}}, Box{{0, 7, 1}, {1, 1, 1}},
                         Box{{2, 30, 2}, {1, 5, 3}}, Box{{0, 33, 0}, {3, 31, 4}}}) {
    const at::Tensor expected = slice_box(packed.decoded, box, {0, 0, 0});
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor out = at::empty({box.extent[0], box.extent[2], box.extent[1]}, dtype);  // as layers hold it
      store.read("up", box, out.transpose(1, 2));
      EXPECT_TRUE(at::equal(out.transpose(1, 2), expected.to(dtype)));
    }
  }
  const at::Tensor bias = at::empty({3, 5});
  store.read("up_bias", Box::whole({3, 5}), bias);
  EXPECT_TRUE(at::equal(bias, at::ones({3, 5})));
  // Whoever takes the tensor has used both that it is made of.
  const Piece piece{
      .name = "up", .shape = {3, 64, 5}, .canonical = Box::whole({3, 64, 5}), .local = Box::whole({3, 64, 5})};
  const std::vector<PieceView> views = {{piece, at::empty({3, 64, 5})}};
  EXPECT_EQ(compare_with_store(store, views).used, (std::set<std::string>{"up", "up_blocks", "up_scales"}));
}

TEST(Mxfp4, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const PackedExperts packed = packed_experts(2, 3, 1);
  const auto message = [&](const TensorMap& tensors) {
    write_packed_tensors(folder.path() / "model.safetensors", tensors);
    TensorStore store = TensorStore::open_folder(folder.path());
    return message_of([&] { store.unpack_mxfp4(); });
  };
  EXPECT_EQ(message({{"up_blocks", packed.blocks}, {"up_scales", packed.scales}}), "(no UserError)");
  EXPECT_TRUE(contains(message({{"up_blocks", packed.blocks}}), "their scales up_scales are in no file"));
  EXPECT_TRUE(contains(message({{"up_blocks", packed.blocks}, {"up_scales", packed.scales}, {"up", at::ones({1})}}),
                       "up itself is there too"));
  EXPECT_TRUE(contains(message({{"up_blocks", packed.blocks}, {"up_scales", at::ones({2, 3, 1})}}), "its scales F32"));
  EXPECT_TRUE(
      contains(message({{"up_blocks", packed.blocks.narrow(3, 0, 8).contiguous()}, {"up_scales", packed.scales}}),
               "up_blocks is [2, 3, 1, 8]"));
}

}  // namespace
}  // namespace megalith
