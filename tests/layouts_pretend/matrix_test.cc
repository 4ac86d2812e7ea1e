// Some rows on an accelerator: each rank a thread with a pretend device of its own, compared with one rank on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layouts_pretend/devices_of_ranks.h"

namespace megalith {
namespace {

using namespace test;

const std::vector<std::string>& rows_on_devices() {
  static const std::vector<std::string> rows = {
      "llama drop two", "untied biased docs tp2", "llama drop tp2 sp", "llama drop pp2", "llama drop pp2 virtual",
      "untied biased pp2 zero_bubble", "untied biased docs cp2", "untied cp2 heads", "untied cp2 gathered",
      "llama drop dp2", "untied biased dp2 zero", "untied dp2 fsdp", "mixtral dp2 ep2", "deepseek dp2 ep2 by_gather",
      // Mixtures.
      "llama drop tp2 sp offloaded", "untied tp2 dp2 sp zero", "mixtral dp2 cp2 ep4", "untied tp2 dp2 fsdp"};
  return rows;
}

std::vector<LayoutRow> all_rows() {
  std::vector<LayoutRow> rows = rows_of("OnHost");
  for (const std::string& words : rows_on_devices()) rows.emplace_back(words);
  return rows;
}

// The references are the CPU's operators: only sums over ranks are in another order, as on the CPU.
TEST(RowsOnDevices, TrainAsOneRankInFloat64) {
  for (LayoutRow& row : all_rows()) EXPECT_EQ(row.difference(on_devices()), "") << row.text();
}

// The kernels of GPUs against those of the CPU: float32 keeps 24 bits, and some tens of rounded terms through two
// layers differ by some 1e-6 of the largest element.
TEST(RowsOnDevices, KernelsOfGpusAgreeInFloat32) {
  for (LayoutRow& row : all_rows()) {
    row.compute_in(at::kFloat, Kernels::kFused);
    EXPECT_EQ(row.difference(on_devices(), 1e-4), "") << row.text();
  }
}

}  // namespace
}  // namespace megalith
