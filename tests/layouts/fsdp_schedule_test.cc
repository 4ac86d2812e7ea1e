// FSDP beside a pipeline: what its ranks hold is what they state before a step, and gathers follow the schedule.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "layouts/forwarded_data_parallel.h"
#include "layouts/rows.h"
#include "parallel/fsdp.h"

namespace megalith {
namespace {

using namespace test;

// Compares a step's peaks with the bounds, and counts gathers of dense weights on one rank of each stage.
class WatchedFsdp : public ForwardedDataParallel {
 public:
  WatchedFsdp(std::unique_ptr<DataParallel> inner, const BuiltModel& model, Groups groups,
              std::map<std::string, int64_t>& gathers)
      : ForwardedDataParallel(std::move(inner), model), groups_(std::move(groups)), gathers_(gathers) {
    groups_.dp_shard_cp->set_trace_hook([this](TracePhase phase, const CollectiveRecord& record) {
      if (phase != TracePhase::kStart || record.kind != CollectiveKind::kAllGather) return;
      if (groups_.dp->rank() == 0) ++gathers_[record.label];
    });
  }
  ~WatchedFsdp() override { groups_.dp_shard_cp->set_trace_hook({}); }
  void begin_step() override {
    fsdp().reset_peak_memory();
    gathers_.clear();
    inner_->begin_step();
  }
  void finish_step() override {
    inner_->finish_step();
    const FsdpMemory& memory = fsdp().memory();
    EXPECT_EQ(memory.parameters.peak, fsdp().whole_parameter_bytes_bound()) << groups_.rank;
    // Reached where several microbatches are in flight, and equal parts meet.
    EXPECT_LE(memory.gradients.peak, fsdp().whole_gradient_bytes_bound()) << groups_.rank;
    EXPECT_GE(memory.gradients.peak, fsdp().whole_gradient_bytes_bound() / 2) << groups_.rank;
    EXPECT_EQ(memory.parameters.now + memory.gradients.now, 0) << groups_.rank;
  }

 private:
  Fsdp& fsdp() { return dynamic_cast<Fsdp&>(*inner_); }
  Groups groups_;
  std::map<std::string, int64_t>& gathers_;
};

TEST(FsdpSchedule, HoldsWhatItStatesAndGathersByTheSchedule) {
  struct Case {
    std::string words;
    bool is_kept;
    bool last_stays;  // the last layer of a stage, from a microbatch's forward to its backward
  };
  const std::string two = " --num_layers=3 --pipeline_model_parallel_layout=Ett|tL";  // the toy keeps the longer stage
  const std::string four = " --num_layers=7 --pipeline_model_parallel_layout=Ett|tt|tt|tL";
  for (const Case& one :
       {Case{"llama dp2 pp2 fsdp" + two, false, true}, Case{"llama dp2 pp2 kept" + two, true, false},
        Case{"llama dp2 pp2 fsdp zero_bubble" + two, false, true}, Case{"llama dp2 pp2 fsdp" + four, false, false}}) {
    LayoutRow row(one.words);
    std::vector<std::map<std::string, int64_t>> gathers(4);
    const CheckHooks watched{
        .change_data_parallel = [&](std::unique_ptr<DataParallel> inner, const BuiltModel& model,
                                    const Groups& groups) -> std::unique_ptr<DataParallel> {
          return std::make_unique<WatchedFsdp>(std::move(inner), model, groups,
                                               gathers[static_cast<size_t>(groups.rank)]);
        }};
    run_as_threads(row.layout(), watched);
    const int64_t microbatches = row.layout().derived.num_microbatches;
    EXPECT_EQ(gathers[0]["model.layers.0 part 0"], one.is_kept ? 1 : 2 * microbatches) << one.words;
    EXPECT_EQ(gathers[0]["model.layers.1 part 0"], one.is_kept      ? 1
                                                   : one.last_stays ? microbatches + 1
                                                                    : 2 * microbatches)
        << one.words;
  }
}

}  // namespace
}  // namespace megalith
