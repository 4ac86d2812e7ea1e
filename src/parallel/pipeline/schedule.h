// Pipeline schedules as data: each rank's ordered list of actions.
//
// Stages 0 … S-1, num_chunks per rank. with_communication() derives transfers from the computations' order; executor.h
// runs any schedule, planner/pipeline_simulator.h checks it for deadlock and times it.
//
//   F  forward    B  backward, whole    I  gradient of the inputs    W  gradients of the weights (deferred by I)
//
// Sources: GPipe, Huang et al. 2018, arXiv:1811.06965; 1F1B, Narayanan et al. 2019, arXiv:1806.03377; interleaved,
// Narayanan et al. 2021, arXiv:2104.04473; zero bubble, Qi et al. 2023, arXiv:2401.10241.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

enum class ActionKind {
  kForward,
  kBackward,
  kInputBackward,
  kWeightBackward,
  kSendForward,      // a chunk's outputs, to the next stage's rank
  kReceiveForward,   // a chunk's inputs, from the previous stage's rank
  kSendBackward,     // the inputs' gradient, to the previous stage's rank
  kReceiveBackward,  // the outputs' gradient, from the next stage's rank
};

bool is_communication(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;  // of the rank
  int microbatch = 0;
  int peer = -1;  // pipeline rank, for transfers

  std::string text() const;  // "F0.3", "B1.2", "I…", "W…"; "F0.3>2" sends to rank 2, "B1.2<0" receives from rank 0
  bool operator==(const Action&) const = default;
};
// Inverse of text(); nothing for other texts.
std::optional<Action> parse_action(std::string_view text);

enum class StageOrder {
  kLoop,  // stage = chunk * ranks + rank
  kVee,   // two chunks: stages rank and 2 * ranks - 1 - rank, so rank 0 has the first and the last
};

struct PipelineShape {
  int num_ranks = 1;
  int num_chunks = 1;  // per rank
  int num_microbatches = 1;
  StageOrder order = StageOrder::kLoop;

  int num_stages() const { return num_ranks * num_chunks; }
  int stage_of(int rank, int chunk) const;
  int rank_of(int stage) const;
  int chunk_of(int stage) const;
  bool operator==(const PipelineShape&) const = default;
};

enum class PipelineAlgorithm {
  kGpipe,
  k1f1b,         // interleaved with several chunks
  kZeroBubble,   // ZB-H1: split backward, memory of 1F1B
  kZeroBubbleV,  // two chunks in a V: no bubble if F, I and W take equally long, memory of 1F1B
};
// Primus's pp_algorithm if it has one: "gpipe", "1f1b", "zero-bubble", "zbv".
std::string_view name_of(PipelineAlgorithm algorithm);

struct PipelineSchedule {
  std::string name;  // for people: "1f1b", "interleaved 1f1b", …
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;  // by rank, in order

  bool splits_backward() const;
};

// Every rank's computations; with_communication() adds transfers.
//
// group: consecutive microbatches of a chunk (microbatch_group_size_per_virtual_pipeline_stage); 0: num_ranks. Only for
// the interleaved form.
//
// Any numbers of microbatches and ranks, except:
//   1F1B    of several chunks: a loop; group >= num_ranks; num_microbatches % group is 0 or at least num_ranks, so
//           num_microbatches >= num_ranks; a group larger than num_microbatches is cut to it
//   ZB-H1   one chunk
//   ZB-V    two chunks in a V
// InternalError for other shapes; pipeline_options.h checks them for the user.
PipelineSchedule make_pipeline_schedule(PipelineAlgorithm algorithm, const PipelineShape& shape, int group = 0);

// For evaluation: every microbatch forward through all stages. Computations only; any shape.
PipelineSchedule make_forward_schedule(const PipelineShape& shape);

// Inserts sends and receives into each rank's computations, replacing existing ones; none between stages on one rank.
//
// Lists agree with one total order of transfers and computations, so they cannot deadlock even if a transfer blocks
// later ones (NCCL): the order of ends when F, I and W take one unit and transfers none. A send directly follows its
// computation, a receive precedes the peer's concurrent computation, so transfers overlap computation.
//
// InternalError, naming the ranks' next actions, for an impossible order (a cycle, a missing or repeated computation).
PipelineSchedule with_communication(PipelineSchedule computations);

// Live activations, of (chunk, microbatch), after each of a rank's actions: from F to the end of B or W; without
// backward, to the end of F.
std::vector<int> live_activations(const std::vector<Action>& actions);

// "rank 0: F0.3" per rank, one a line, indented; next[rank] indexes its list. For messages.
std::string next_actions_text(const PipelineSchedule& schedule, const std::vector<size_t>& next);

}  // namespace megalith
