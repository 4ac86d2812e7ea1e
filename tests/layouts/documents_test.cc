// Documents that share a row do not touch: every family, every way to cut rows and the model.
#include <gtest/gtest.h>

#include "layouts/layout.h"
#include "verify/document_check.h"

namespace megalith {
namespace {

using namespace test;

std::vector<TinyRun> documents_of_families() {
  const TinyRun base{.has_documents = true, .global_batch = 4, .sequence = 16};
  std::vector<TinyRun> tasks(7, base);
  tasks[0].has_dropout = true;
  tasks[1].has_qkv_bias = true;    // qwen2
  tasks[2].has_head_norms = true;  // qwen3
  tasks[3].family = "gpt";
  tasks[4].family = "mixtral";
  tasks[5].family = "deepseek";  // with a prediction module
  tasks[6].is_masked = true;
  return tasks;
}

std::vector<Layout> ways_to_cut(const TinyRun& task) {
  std::vector<Layout> layouts = {
      {.micro_batch = 4},
      {.tp = 2, .is_sequence_parallel = true, .micro_batch = 2},
      {.pp = 2, .micro_batch = 1},
      {.cp = 2, .micro_batch = 2, .cp_comm_type = {"p2p"}},
      {.cp = 2, .micro_batch = 2, .cp_comm_type = {"all_gather"}},
      {.cp = 2, .micro_batch = 2, .cp_comm_type = {"a2a"}},
      {.cp = 4, .micro_batch = 4, .cp_comm_type = {"a2a+p2p"}, .cp_ulysses = 2},
      {.tp = 2, .dp = 2, .cp = 2, .micro_batch = 2, .data_parallel = zero1(), .cp_comm_type = {"p2p"}},
  };
  for (Layout& layout : layouts) layout.task = task;
  return layouts;
}

// Fails the running test where documents touch.
void expect_apart(const Layout& layout, const Precision& precision) {
  const auto run = [&](const SilentDocument& silent) {
    Layout one = layout;
    one.task.silent = silent;
    return run_layout(one, precision, /*num_steps=*/1);
  };
  // To the bit without experts.
  const double tolerance = document_tolerance(layout.task.has_experts(), precision.dtype);
  EXPECT_EQ(find_touching_documents(run, 0, tolerance), "") << layout.text();
}

TEST(Documents, DoNotTouchInFloat64) {
  for (const TinyRun& task : documents_of_families()) {
    for (const Layout& layout : ways_to_cut(task)) expect_apart(layout, {});
  }
}

TEST(Documents, DoNotTouchInFloat32OnTheFusedOperators) {
  for (const TinyRun& task : documents_of_families()) {
    for (const Layout& layout : ways_to_cut(task)) expect_apart(layout, {at::kFloat, Kernels::kFused});
  }
}

// The check can fail: one document is taken for both.
TEST(Documents, ThatAreNotToldApartAreFound) {
  const Mistake blind{.name = "no documents",
                      .hooks = {.change_batches = [](std::vector<Batch>& batches, const Groups&) {
                        for (Batch& batch : batches) batch.at(field::kDocumentIds).zero_();
                      }}};
  for (const Layout& layout : ways_to_cut(documents_of_families()[0])) {
    const auto run = [&](const SilentDocument& silent) {
      Layout one = layout;
      one.task.silent = silent;
      return run_layout(one, {}, /*num_steps=*/1, &blind);
    };
    EXPECT_NE(find_touching_documents(run, 0, 1e-3), "") << layout.text();
  }
}

}  // namespace
}  // namespace megalith
