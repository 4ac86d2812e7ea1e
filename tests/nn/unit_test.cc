// Tensors that cross a cut between units, also for models that are no decoders.
#include "nn/unit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "nn/forward.h"

namespace megalith {
namespace {

using UnitNames = std::vector<std::string>;

// An encoder of two layers whose normed output every decoder layer reads, and one table for both embeddings and the
// head.
std::vector<Unit> encoder_decoder() {
  const UsedParameter table{.unit = "encoder.embed", .parameter = "shared.weight"};
  return {
      {.kind = "embedding", .name = "encoder.embed", .gives = {"hidden"}},
      {.kind = "layer", .name = "encoder.0", .reads = {"hidden"}, .gives = {"hidden"}},
      {.kind = "layer", .name = "encoder.1", .reads = {"hidden"}, .gives = {"hidden"}, .stays_with_next = true},
      {.kind = "norm", .name = "encoder.norm", .reads = {"hidden"}, .gives = {"memory"}},
      {.kind = "embedding", .name = "decoder.embed", .gives = {"hidden"}, .uses = {table}},
      {.kind = "layer", .name = "decoder.0", .reads = {"hidden", "memory"}, .gives = {"hidden"}},
      {.kind = "adapter", .name = "decoder.adapter", .reads = {"hidden"}, .gives = {"hidden"}},
      {.kind = "layer", .name = "decoder.1", .reads = {"hidden", "memory"}, .gives = {"hidden"}},
      {.kind = "head", .name = "head", .reads = {"hidden"}, .uses = {table}},
  };
}

// Blocks on two streams, then blocks on their joint one.
std::vector<Unit> two_streams() {
  return {
      {.kind = "embedding", .name = "in", .gives = {"image", "text"}},
      {.kind = "double", .name = "double.0", .reads = {"image", "text"}, .gives = {"image", "text"}},
      {.kind = "double", .name = "double.1", .reads = {"image", "text"}, .gives = {"image", "text"}},
      {.kind = "single", .name = "single.0", .reads = {"text", "image"}, .gives = {"joint"}},
      {.kind = "single", .name = "single.1", .reads = {"joint"}, .gives = {"joint"}},
      {.kind = "head", .name = "out", .reads = {"joint"}},
  };
}

TEST(Units, ABoundaryIsWhatLaterUnitsRead) {
  const std::vector<Unit> t5 = encoder_decoder();
  const std::vector<UnitNames> expected = {{},
                                           {"hidden"},
                                           {"hidden"},
                                           {"hidden"},
                                           {"memory"},  // the decoder starts from its own embedding
                                           {"hidden", "memory"},
                                           {"hidden", "memory"},  // the adapter does not read it, the next layer does
                                           {"hidden", "memory"},
                                           {"hidden"},
                                           {}};
  for (size_t begin = 0; begin < expected.size(); ++begin) {
    EXPECT_EQ(boundary_before(t5, static_cast<int64_t>(begin)), expected[begin]) << begin;
  }
  const std::vector<Unit> flux = two_streams();
  EXPECT_EQ(boundary_before(flux, 0), UnitNames());
  EXPECT_EQ(boundary_before(flux, 2), (UnitNames{"image", "text"}));
  EXPECT_EQ(boundary_before(flux, 3), (UnitNames{"text", "image"}));  // in the order of the first reader
  EXPECT_EQ(boundary_before(flux, 4), (UnitNames{"joint"}));
  EXPECT_EQ(boundary_before(flux, 6), UnitNames());
}

// Chunk after chunk, each with numbers of its own: memory passes through chunks that do not touch it.
TEST(Units, AChunkPassesOnWhatItDoesNotTouch) {
  const std::vector<Unit> units = encoder_decoder();
  const auto bundle = [](const std::vector<std::pair<std::string, int>>& entries) {
    Bundle all;
    for (const auto& [name, number] : entries) all.set(name, at::tensor(number));
    return all;
  };
  const auto text = [](const Bundle& all) {
    std::string words;
    for (const auto& [name, tensor] : all.tensors) words += name + std::to_string(tensor.item<int64_t>()) + " ";
    return words;
  };
  const Bundle encoded = outgoing_bundle(units, {0, 4}, bundle({{"memory", 1}}), {});
  EXPECT_EQ(text(encoded), "memory1 ");
  const Bundle first = outgoing_bundle(units, {4, 2}, bundle({{"hidden", 2}}), encoded);
  EXPECT_EQ(text(first), "hidden2 memory1 ");
  const Bundle adapted = outgoing_bundle(units, {6, 1}, bundle({{"hidden", 3}}), first);
  EXPECT_EQ(text(adapted), "hidden3 memory1 ");
  EXPECT_EQ(text(outgoing_bundle(units, {7, 1}, bundle({{"hidden", 4}}), adapted)), "hidden4 ");
  EXPECT_EQ(text(outgoing_bundle(units, {8, 1}, {}, bundle({{"hidden", 4}}))), "");
  EXPECT_THROW(outgoing_bundle(units, {6, 1}, bundle({{"hidden", 3}}), bundle({{"hidden", 2}})), InternalError);
}

TEST(Units, AListThatContradictsItselfIsRefused) {
  EXPECT_NO_THROW(check_units(encoder_decoder()));
  EXPECT_NO_THROW(check_units(two_streams()));
  const auto changed = [](size_t unit, const auto& change) {
    std::vector<Unit> units = encoder_decoder();
    change(units.at(unit));
    return units;
  };
  EXPECT_THROW(check_units(changed(3, [](Unit& unit) { unit.gives = {}; })), InternalError);          // no memory
  EXPECT_THROW(check_units(changed(1, [](Unit& unit) { unit.name = "encoder.1"; })), InternalError);  // twice
  EXPECT_THROW(check_units(changed(8, [](Unit& unit) { unit.uses[0].unit = "embed"; })), InternalError);
  // The unit that has a parameter is built before those that use it.
  EXPECT_THROW(check_units(changed(
                   0, [](Unit& unit) { unit.uses = {{.unit = "decoder.embed", .parameter = "shared.weight"}}; })),
               InternalError);
  EXPECT_THROW(boundary_before(two_streams(), 7), InternalError);
}

}  // namespace
}  // namespace megalith
