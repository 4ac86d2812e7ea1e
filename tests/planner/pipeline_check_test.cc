// Schedules broken on purpose: each kind of mistake is found, and told with every rank's next action.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "planner/pipeline_simulator.h"
#include "planner/schedules.h"

namespace megalith {
namespace {

using testing::complete_schedule;

// Fails unless the schedule is refused with a message that has all the parts.
void expect_refused(const PipelineSchedule& schedule, const std::vector<std::string>& parts) {
  try {
    check_pipeline_schedule(schedule);
    ADD_FAILURE() << "was let through";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

std::vector<Action>::iterator find_action(std::vector<Action>& actions, const std::string& text) {
  const auto found = std::find(actions.begin(), actions.end(), parse_action(text));
  EXPECT_NE(found, actions.end()) << text;
  return found;
}

PipelineSchedule four_ranks(PipelineAlgorithm algorithm = PipelineAlgorithm::k1f1b) {
  return complete_schedule(algorithm, 4, 8);
}

TEST(PipelineCheck, ADroppedSend) {
  PipelineSchedule schedule = four_ranks();
  schedule.ranks[1].erase(find_action(schedule.ranks[1], "F0.3>2"));
  expect_refused(schedule, {"from rank 1 to rank 2", "outputs of microbatch 3 for stage 2", "rank 2: F0.3<1"});
}

TEST(PipelineCheck, ADroppedReceive) {
  PipelineSchedule schedule = four_ranks();
  schedule.ranks[2].erase(find_action(schedule.ranks[2], "B0.7<3"));
  expect_refused(schedule, {"from rank 3 to rank 2", "received as nothing", "rank 2: B0.7 ", "rank 3: B0.7>2"});
}

TEST(PipelineCheck, SwappedReceives) {
  PipelineSchedule schedule = four_ranks();
  std::vector<Action>& actions = schedule.ranks[2];
  std::swap(*find_action(actions, "F0.4<1"), *find_action(actions, "F0.5<1"));
  expect_refused(schedule, {"from rank 1 to rank 2", "microbatch 4", "microbatch 5"});
}

TEST(PipelineCheck, AComputationTwice) {
  PipelineSchedule schedule = four_ranks();
  std::vector<Action>& actions = schedule.ranks[3];
  const auto at = find_action(actions, "B0.2");
  actions.insert(at + 1, *at);
  expect_refused(schedule, {"rank 3 has B0.2 twice"});
}

TEST(PipelineCheck, ATransferTwice) {
  PipelineSchedule schedule = four_ranks();
  const auto send = find_action(schedule.ranks[0], "F0.2>1");
  schedule.ranks[0].insert(send, *send);
  const auto receive = find_action(schedule.ranks[1], "F0.2<0");
  schedule.ranks[1].insert(receive, *receive);
  expect_refused(schedule, {"rank 0 has F0.2>1 twice"});
}

TEST(PipelineCheck, AMissingWeightGradient) {
  for (const auto algorithm : {PipelineAlgorithm::kZeroBubble, PipelineAlgorithm::kZeroBubbleV}) {
    PipelineSchedule schedule = four_ranks(algorithm);
    schedule.ranks[2].erase(find_action(schedule.ranks[2], "W0.5"));
    expect_refused(schedule, {"rank 2 misses W0.5"});
  }
}

TEST(PipelineCheck, AMissingBackwardAndAMissingForward) {
  PipelineSchedule schedule = four_ranks();
  schedule.ranks[0].erase(find_action(schedule.ranks[0], "B0.7"));  // no action reads it
  expect_refused(schedule, {"rank 0 misses B0.7"});
  schedule = four_ranks();
  schedule.ranks[1].erase(find_action(schedule.ranks[1], "F0.0"));
  expect_refused(schedule, {"rank 1 misses F0.0", "rank 1: F0.0>2", "rank 2: F0.0<1"});
}

TEST(PipelineCheck, WholeAndSplitBackwardOfOneMicrobatch) {
  PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::kZeroBubble, 1, 2);
  schedule.ranks[0].push_back({ActionKind::kBackward, 0, 1});
  expect_refused(schedule, {"rank 0 has B0.1 both whole and in parts"});
}

TEST(PipelineCheck, AComputationBeforeItsInputs) {
  PipelineSchedule schedule = four_ranks();
  std::vector<Action>& actions = schedule.ranks[2];
  std::iter_swap(find_action(actions, "F0.0<1"), find_action(actions, "F0.0"));
  expect_refused(schedule, {"rank 2: F0.0 (action 0"});
  schedule = four_ranks(PipelineAlgorithm::kZeroBubble);
  std::iter_swap(find_action(schedule.ranks[0], "I0.3"), find_action(schedule.ranks[0], "W0.3"));
  expect_refused(schedule, {"rank 0: W0.3"});
  // Without any transfers.
  expect_refused(make_pipeline_schedule(PipelineAlgorithm::k1f1b, {2, 1, 2, StageOrder::kLoop}), {"rank 1: F0.0"});
}

TEST(PipelineCheck, AnOrderThatGoesInACircle) {
  PipelineSchedule schedule = four_ranks(PipelineAlgorithm::kGpipe);
  std::vector<Action>& actions = schedule.ranks[0];
  // Backward before the forward that it comes from, whole groups of actions moved.
  std::rotate(actions.begin(), find_action(actions, "B0.0<1"), find_action(actions, "B0.1<1"));
  expect_refused(schedule, {"circle", "rank 0: B0.0", "rank 1: F0.0<0"});
}

// Both lists are right for themselves, but each sends first what the other receives second: fine where sends are
// buffered, a deadlock where a transfer waits for its peer.
TEST(PipelineCheck, TransfersThatHoldBackOneAnother) {
  PipelineSchedule schedule = complete_schedule(PipelineAlgorithm::k1f1b, 2, 4);
  EXPECT_NO_THROW(check_pipeline_schedule(schedule));
  std::vector<Action>& first = schedule.ranks[0];
  const auto send = find_action(first, "F0.1>1"), receive = find_action(first, "B0.0<1");
  ASSERT_LT(send, receive);
  std::iter_swap(send, receive);
  expect_refused(schedule, {"circle when each transfer waits", "rank 0: B0.0<1", "rank 1: F0.1<0"});
}

// The same mistake among three ranks of which no two disagree: all send to the next before they receive.
TEST(PipelineCheck, TransfersThatHoldBackOneAnotherInARing) {
  PipelineSchedule schedule = with_communication(make_forward_schedule({3, 2, 4, StageOrder::kLoop}));
  EXPECT_NO_THROW(check_pipeline_schedule(schedule));
  // F0.3 of rank 0, F0.2 of rank 1 and F0.1 of rank 2 end at the same moment.
  const auto swap = [&](size_t rank, const std::string& receive, const std::string& send) {
    std::vector<Action>& actions = schedule.ranks[rank];
    ASSERT_EQ(find_action(actions, receive) + 1, find_action(actions, send));
    std::iter_swap(find_action(actions, receive), find_action(actions, send));
  };
  swap(1, "F0.3<0", "F0.2>2");
  EXPECT_NO_THROW(check_pipeline_schedule(schedule));  // rank 2 still receives first
  swap(2, "F0.2<1", "F0.1>0");
  expect_refused(schedule, {"circle when each transfer waits", "rank 0: F0.3>1", "rank 1: F0.2>2", "rank 2: F0.1>0"});
}

TEST(PipelineCheck, ActionsThatHaveNoPlace) {
  PipelineSchedule schedule = four_ranks();
  schedule.ranks[1].push_back({ActionKind::kForward, 1, 0});
  expect_refused(schedule, {"rank 1 has F1.0", "1 chunks"});
  schedule = four_ranks();
  schedule.ranks[1].push_back({ActionKind::kForward, 0, 8});
  expect_refused(schedule, {"rank 1 has F0.8", "8 microbatches"});
  schedule = four_ranks();
  find_action(schedule.ranks[1], "F0.0>2")->peer = 3;
  expect_refused(schedule, {"rank 1 has F0.0>3", "neighbour"});
  schedule = four_ranks();
  schedule.ranks[3].push_back({ActionKind::kSendForward, 0, 0, 0});  // after the last stage
  expect_refused(schedule, {"rank 3 has F0.0>0", "neighbour"});
  schedule = four_ranks();
  schedule.ranks.pop_back();
  expect_refused(schedule, {"3 lists for 4 ranks"});
}

// Any single action removed from any list is noticed, and any two neighbours that are swapped are noticed or harmless.
TEST(PipelineCheck, EveryRemovalIsNoticed) {
  for (const auto algorithm : {PipelineAlgorithm::kGpipe, PipelineAlgorithm::k1f1b, PipelineAlgorithm::kZeroBubble,
                               PipelineAlgorithm::kZeroBubbleV}) {
    const PipelineSchedule whole = complete_schedule(algorithm, 3, 5);
    for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
      for (size_t index = 0; index < whole.ranks[rank].size(); ++index) {
        PipelineSchedule schedule = whole;
        schedule.ranks[rank].erase(schedule.ranks[rank].begin() + static_cast<std::ptrdiff_t>(index));
        EXPECT_THROW(check_pipeline_schedule(schedule), InternalError)
            << schedule.name << " rank " << rank << " without " << whole.ranks[rank][index].text();
      }
    }
  }
}

}  // namespace
}  // namespace megalith
