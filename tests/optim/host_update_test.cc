// Updates on the host, chunk by chunk, against the optimizer's own. Here the device is the CPU, whose copies are made
// at once; the order of copies is tested where a device is pretended (tests/pretend/host_states_test.py).
#include "optim/host_update.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "optim/adamw.h"
#include "support/tensor_near.h"

namespace megalith {
namespace {

// Parts of three parameters, one of them a run, with gradients; `device` copies are as good as any memory.
struct Parts {
  explicit Parts(at::ScalarType dtype) {
    const int64_t counts[] = {7, 30, 5};
    for (int i = 0; i < 3; ++i) {
      const std::string name = "w" + std::to_string(i);
      parameters.push_back(std::make_unique<Parameter>(name, Placement::whole(name, {counts[i]}),
                                                       ParameterOptions{.dtype = dtype, .init = Init::normal(0.5)}));
      parameters.back()->initialise(3);
      const at::Tensor grad = at::sin(at::arange(counts[i], at::kFloat) * (i + 1));
      OwnedPart part{
          .parameter = parameters.back().get(), .range = {}, .model = parameters.back()->data(), .grad = grad};
      if (i == 1) {
        part.range = FlatRange{4, 25};
        part.model = part.model.narrow(0, 4, 21);
        part.grad = part.grad.narrow(0, 4, 21);
      }
      parts.push_back(part);
    }
  }

  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<OwnedPart> parts;
};

// has_master: an fp32 copy beside the weight; otherwise the weight is what moves.
UpdateSlot slot_of(const OwnedPart& part, bool has_master, bool is_on_host) {
  UpdateSlot slot{.part = &part, .grad = part.grad, .lr = 0.01, .weight_decay = 0.1};
  for (int i = 0; i < 2; ++i) slot.state.push_back(at::zeros(part.model.sizes(), at::kFloat));
  if (has_master) slot.master = part.model.to(at::kFloat);
  const bool is_own_master = part.model.scalar_type() == at::kFloat;
  if (is_own_master && !is_on_host) {
    slot.master = part.model;
  } else {
    slot.model = part.model;
  }
  return slot;
}

UpdateStep step_of(double number) {
  return {.grad_scale = at::full({}, 0.5, at::kDouble), .number = at::full({}, number, at::kDouble), .is_made = {}};
}

void expect_equal_updates(at::ScalarType dtype, bool has_master, OptimizerOptions options, bool overlap,
                          int64_t chunk_elements) {
  SCOPED_TRACE(fmt::format("{} {} chunks of {}", c10::toString(dtype), overlap ? "overlapped" : "in turn", chunk_elements));
  Parts plain(dtype), on_host(dtype);
  AdamwRule rule(options, Kernels::kReference), host_rule(options, Kernels::kReference);
  std::vector<UpdateSlot> slots;
  std::vector<HostUpdate::Entry> entries;
  for (const OwnedPart& part : plain.parts) slots.push_back(slot_of(part, has_master, false));
  for (const OwnedPart& part : on_host.parts) entries.push_back({0, slot_of(part, has_master, true)});
  HostUpdate update(at::kCPU, std::move(entries), overlap, chunk_elements);
  EXPECT_EQ(update.num_chunks(), static_cast<size_t>((7 + 21 + 5 + chunk_elements - 1) / chunk_elements));
  for (int step = 1; step <= 3; ++step) {
    rule.update(slots, step_of(step));
    update.run([&](size_t, std::span<UpdateSlot> some) { host_rule.update(some, step_of(step)); });
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_TRUE(at::equal(on_host.parameters[i]->data(), plain.parameters[i]->data())) << "weight " << i;
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_TRUE(at::equal(update.entries()[i].slot.state[s], slots[i].state[s])) << "state " << s << " of " << i;
    }
  }
}

TEST(HostUpdate, EqualsTheUpdateInOnePieceWhateverTheChunks) {
  for (const int64_t chunk_elements : {1, 4, 7, 33, 1000}) {
    for (const bool overlap : {false, true}) {
      expect_equal_updates(at::kBFloat16, /*has_master=*/true, {}, overlap, chunk_elements);
      expect_equal_updates(at::kFloat, /*has_master=*/false, {}, overlap, chunk_elements);
    }
  }
}

// An element's draw depends on its place in the canonical tensor, not on the chunk.
TEST(HostUpdate, RoundsAtRandomAsInOnePiece) {
  const OptimizerOptions options{.master_weights = MasterWeights::kNone, .stochastic_rounding = true};
  for (const int64_t chunk_elements : {1, 4, 1000}) {
    expect_equal_updates(at::kBFloat16, /*has_master=*/false, options, /*overlap=*/true, chunk_elements);
  }
}

TEST(HostUpdate, TakesThreeBuffersWithOverlapAndOneWithout) {
  Parts parts(at::kBFloat16);
  const auto staging = [&](bool overlap, int64_t chunk_elements) {
    std::vector<HostUpdate::Entry> entries;
    for (const OwnedPart& part : parts.parts) entries.push_back({0, slot_of(part, true, true)});
    return HostUpdate(at::kCPU, std::move(entries), overlap, chunk_elements).staging_bytes();
  };
  // 33 elements of 4 and 2 bytes in chunks of 11: gradients and weights of a piece each begin at a multiple of 64.
  EXPECT_EQ(staging(true, 11), 3 * staging(false, 11));
  EXPECT_EQ(staging(true, 1000), staging(false, 1000));  // one chunk needs one
}

}  // namespace
}  // namespace megalith
