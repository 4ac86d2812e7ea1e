// Orders of computations as published, and the sends and receives that follow from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "parallel/pipeline/schedule.h"

namespace megalith {
namespace {

std::string texts_of(const std::vector<Action>& actions) {
  std::string result;
  for (const Action& action : actions) result += (result.empty() ? "" : " ") + action.text();
  return result;
}

PipelineShape loop_shape(int num_ranks, int num_chunks, int num_microbatches) {
  return {num_ranks, num_chunks, num_microbatches, StageOrder::kLoop};
}

PipelineShape vee_shape(int num_ranks, int num_microbatches) {
  return {num_ranks, 2, num_microbatches, StageOrder::kVee};
}

TEST(PipelineAction, TextsAreReadBack) {
  const std::pair<Action, std::string> cases[] = {
      {{ActionKind::kForward, 0, 3}, "F0.3"},
      {{ActionKind::kBackward, 1, 2}, "B1.2"},
      {{ActionKind::kInputBackward, 11, 0}, "I11.0"},
      {{ActionKind::kWeightBackward, 0, 120}, "W0.120"},
      {{ActionKind::kSendForward, 0, 3, 2}, "F0.3>2"},
      {{ActionKind::kReceiveForward, 1, 3, 0}, "F1.3<0"},
      {{ActionKind::kSendBackward, 1, 2, 10}, "B1.2>10"},
      {{ActionKind::kReceiveBackward, 1, 2, 0}, "B1.2<0"},
  };
  for (const auto& [action, text] : cases) {
    EXPECT_EQ(action.text(), text);
    EXPECT_EQ(parse_action(text), action);
  }
}

TEST(PipelineAction, OtherTextsAreNone) {
  for (const char* text : {"", "F", "F0", "F0.", "F.3", "X0.1", "f0.1", "F0.1>", "F0.1=2", "I0.1>2", "W0.0<1", "F0.1 ",
                           " F0.1", "F0.-1", "F0.1>2>3", "F0.1 2", "F0.1234567890", "F99999999999.1"}) {
    EXPECT_EQ(parse_action(text), std::nullopt) << text;
  }
}

TEST(PipelineShape, StagesLieInALoopOrInAV) {
  for (const PipelineShape& shape : {loop_shape(3, 2, 1), loop_shape(1, 4, 1), vee_shape(4, 1), vee_shape(1, 1)}) {
    for (int stage = 0; stage < shape.num_stages(); ++stage) {
      EXPECT_EQ(shape.stage_of(shape.rank_of(stage), shape.chunk_of(stage)), stage);
    }
  }
  EXPECT_EQ(loop_shape(3, 2, 1).stage_of(1, 1), 4);
  EXPECT_EQ(vee_shape(4, 1).stage_of(0, 1), 7);
  EXPECT_EQ(vee_shape(4, 1).stage_of(3, 1), 4);
}

TEST(PipelineSchedule, GpipeIsAllForwardsThenAllBackwards) {
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::kGpipe, loop_shape(2, 1, 3));
  for (const auto& actions : schedule.ranks) EXPECT_EQ(texts_of(actions), "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2");
}

TEST(PipelineSchedule, OneForwardOneBackwardWarmsUpByTheRanksBehind) {
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(3, 1, 4));
  EXPECT_EQ(texts_of(schedule.ranks[0]), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
  EXPECT_EQ(texts_of(schedule.ranks[1]), "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3");
  EXPECT_EQ(texts_of(schedule.ranks[2]), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3");
  EXPECT_EQ(texts_of(make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(4, 1, 1)).ranks[0]), "F0.0 B0.0");
}

// Megatron-LM's example: two ranks, two chunks, four microbatches; warm-up 4 on rank 0 and 2 on rank 1.
TEST(PipelineSchedule, InterleavedAsMegatronOrdersIt) {
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(2, 2, 4));
  EXPECT_EQ(schedule.name, "interleaved 1f1b");
  EXPECT_EQ(texts_of(schedule.ranks[0]),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3");
  EXPECT_EQ(texts_of(schedule.ranks[1]),
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3");
}

TEST(PipelineSchedule, AGroupIsTakenByOneChunkBeforeTheNext) {
  // Groups of 3, then the 2 that are left.
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(2, 2, 5), 3);
  std::vector<Action> forwards = schedule.ranks[1];
  std::erase_if(forwards, [](const Action& action) { return action.kind != ActionKind::kForward; });
  EXPECT_EQ(texts_of(forwards), "F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 F0.3 F0.4 F1.3 F1.4");
  // Warm-up (p - rank - 1) * 2 + (v - 1) * group = 3, then a forward before the first backward.
  EXPECT_EQ(schedule.ranks[1][4].text(), "B1.0");
}

TEST(PipelineSchedule, ZeroBubbleDelaysWeightsByTheRank) {
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::kZeroBubble, loop_shape(3, 1, 4));
  EXPECT_TRUE(schedule.splits_backward());
  EXPECT_EQ(texts_of(schedule.ranks[0]), "F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3");
  EXPECT_EQ(texts_of(schedule.ranks[2]), "F0.0 I0.0 F0.1 I0.1 F0.2 I0.2 W0.0 F0.3 I0.3 W0.1 W0.2 W0.3");
}

TEST(PipelineSchedule, ZeroBubbleVOnTwoRanks) {
  const PipelineSchedule schedule = make_pipeline_schedule(PipelineAlgorithm::kZeroBubbleV, vee_shape(2, 3));
  EXPECT_EQ(texts_of(schedule.ranks[0]),
            "F0.0 F0.1 F0.2 F1.0 I1.0 W1.0 F1.1 I1.1 W1.1 I0.0 W0.0 F1.2 I1.2 W1.2 I0.1 W0.1 I0.2 W0.2");
  EXPECT_EQ(texts_of(schedule.ranks[1]),
            "F0.0 F1.0 F0.1 F1.1 I1.0 W1.0 F0.2 I0.0 W0.0 F1.2 I1.1 W1.1 I0.1 I1.2 I0.2 W0.1 W1.2 W0.2");
}

TEST(PipelineSchedule, ForwardAloneHoldsNothing) {
  const PipelineSchedule schedule = make_forward_schedule(vee_shape(2, 2));
  EXPECT_EQ(texts_of(schedule.ranks[1]), "F0.0 F0.1 F1.0 F1.1");
  EXPECT_EQ(live_activations(schedule.ranks[1]), std::vector<int>(4, 0));
  EXPECT_FALSE(schedule.splits_backward());
}

TEST(PipelineSchedule, ShapesThatAnAlgorithmDoesNotKnowAreRefused) {
  const auto make = [](PipelineAlgorithm algorithm, const PipelineShape& shape, int group = 0) {
    return make_pipeline_schedule(algorithm, shape, group);
  };
  EXPECT_THROW(make(PipelineAlgorithm::kZeroBubble, loop_shape(2, 2, 4)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::kZeroBubbleV, loop_shape(2, 2, 4)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::kZeroBubbleV, loop_shape(2, 1, 4)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::k1f1b, vee_shape(2, 4)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::kGpipe, loop_shape(2, 1, 0)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::kGpipe, {2, 3, 4, StageOrder::kVee}), InternalError);
  // Interleaved: groups smaller than the ranks, and a rest smaller than the ranks.
  EXPECT_THROW(make(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 8), 3), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 3)), InternalError);
  EXPECT_THROW(make(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 9), 6), InternalError);
  EXPECT_NO_THROW(make(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 10), 6));
  EXPECT_NO_THROW(make(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 5), 6));
}

TEST(LiveActivations, CountFromForwardToTheEndOfBackward) {
  const std::vector<Action> actions = {{ActionKind::kForward, 0, 0},        {ActionKind::kSendForward, 0, 0, 1},
                                       {ActionKind::kForward, 1, 0},        {ActionKind::kInputBackward, 1, 0},
                                       {ActionKind::kWeightBackward, 1, 0}, {ActionKind::kBackward, 0, 0}};
  EXPECT_EQ(live_activations(actions), (std::vector<int>{1, 1, 2, 2, 1, 0}));
}

// Every list of 1F1B on two ranks, by hand: F and B of the other rank meet where the clock says.
TEST(WithCommunication, PlacesTransfersUnderComputation) {
  const PipelineSchedule schedule =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(2, 1, 2)));
  EXPECT_EQ(texts_of(schedule.ranks[0]), "F0.0 F0.0>1 F0.1 F0.1>1 B0.0<1 B0.0 B0.1<1 B0.1");
  // The second receive stands before B0.0, which rank 1 computes while rank 0 sends.
  EXPECT_EQ(texts_of(schedule.ranks[1]), "F0.0<0 F0.0 F0.1<0 B0.0 B0.0>0 F0.1 B0.1 B0.1>0");
}

TEST(WithCommunication, NeighboursOnOneRankNeedNone) {
  const auto transfers_of = [](const std::vector<Action>& actions) {
    return std::count_if(actions.begin(), actions.end(),
                         [](const Action& action) { return is_communication(action.kind); });
  };
  const PipelineSchedule alone =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(1, 3, 4)));
  EXPECT_EQ(transfers_of(alone.ranks[0]), 0);
  // In a V of two ranks, stages 1 and 2 lie on rank 1: 0 -> 1 and 2 -> 3 remain, forward and backward.
  const PipelineSchedule vee =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::kZeroBubbleV, vee_shape(2, 3)));
  EXPECT_EQ(transfers_of(vee.ranks[0]), 4 * 3);
  EXPECT_EQ(transfers_of(vee.ranks[1]), 4 * 3);
}

TEST(WithCommunication, AddsNothingTwiceAndKeepsTheOrder) {
  const PipelineSchedule computations = make_pipeline_schedule(PipelineAlgorithm::k1f1b, loop_shape(4, 2, 8));
  const PipelineSchedule once = with_communication(computations), twice = with_communication(once);
  EXPECT_EQ(once.ranks, twice.ranks);
  for (size_t rank = 0; rank < once.ranks.size(); ++rank) {
    std::vector<Action> rest = once.ranks[rank];
    std::erase_if(rest, [](const Action& action) { return is_communication(action.kind); });
    EXPECT_EQ(rest, computations.ranks[rank]);
  }
}

TEST(WithCommunication, ASendFollowsItsComputationAtOnce) {
  const PipelineSchedule schedule =
      with_communication(make_pipeline_schedule(PipelineAlgorithm::kZeroBubble, loop_shape(4, 1, 6)));
  for (const std::vector<Action>& actions : schedule.ranks) {
    Action computed;
    for (const Action& action : actions) {
      if (!is_communication(action.kind)) computed = action;
      const bool is_forward = action.kind == ActionKind::kSendForward;
      if (!is_forward && action.kind != ActionKind::kSendBackward) continue;
      EXPECT_EQ(computed.microbatch, action.microbatch) << action.text();
      EXPECT_EQ(computed.kind, is_forward ? ActionKind::kForward : ActionKind::kInputBackward) << action.text();
    }
  }
}

TEST(WithCommunication, AnOrderThatCannotBeComputedIsRefused) {
  PipelineSchedule circle = make_pipeline_schedule(PipelineAlgorithm::kGpipe, loop_shape(2, 1, 2));
  std::swap(circle.ranks[0][0], circle.ranks[0][2]);  // B0.0 first: it needs rank 1, which needs F0.0
  try {
    with_communication(circle);
    FAIL() << "was let through";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0: B0.0"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1: F0.0"), std::string::npos) << text;
  }
  PipelineSchedule doubled = make_pipeline_schedule(PipelineAlgorithm::kGpipe, loop_shape(2, 1, 2));
  doubled.ranks[1].insert(doubled.ranks[1].begin(), doubled.ranks[1].front());
  EXPECT_THROW(with_communication(doubled), InternalError);
}

}  // namespace
}  // namespace megalith
