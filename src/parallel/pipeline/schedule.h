// Pipeline schedules as data: for every rank of a pipeline the list of what it does, in order.
//
// A model is cut into stages 0 … S-1; a rank holds num_chunks of them. A microbatch runs forward through all stages and
// backward through all of them again. A schedule says in which order each rank computes; sends and receives follow from
// that order by one function, with_communication(). One executor (executor.h) runs any schedule, one simulator
// (planner/pipeline_simulator.h) proves it free of deadlock and times it.
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
  kSendForward,      // the outputs of a chunk's forward, to the rank of the next stage
  kReceiveForward,   // a chunk's inputs, from the rank of the stage before
  kSendBackward,     // the gradient of a chunk's inputs, to the rank of the stage before
  kReceiveBackward,  // the gradient of a chunk's outputs, from the rank of the next stage
};

bool is_communication(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int chunk = 0;       // which of the rank's chunks computes, sends or receives
  int microbatch = 0;  // from 0
  int peer = -1;       // rank in the pipeline, for communication

  std::string text() const;  // "F0.3", "B1.2", "I…", "W…"; "F0.3>2" is sent to rank 2, "B1.2<0" received from rank 0
  bool operator==(const Action&) const = default;
};
// What text() wrote; nothing when it is no action's text.
std::optional<Action> parse_action(std::string_view text);

// How stages lie on ranks.
enum class StageOrder {
  kLoop,  // stage = chunk * ranks + rank
  kVee,   // two chunks: stage = rank, and 2 * ranks - 1 - rank, so that rank 0 has the first and the last
};

struct PipelineShape {
  int num_ranks = 1;
  int num_chunks = 1;  // of a rank
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
  k1f1b,         // with several chunks: interleaved
  kZeroBubble,   // ZB-H1: backward split, memory of 1F1B
  kZeroBubbleV,  // two chunks in a V: no bubble when F, I and W take equally long, memory of 1F1B
};
// Primus's words of pp_algorithm where it has one: "gpipe", "1f1b", "zero-bubble", "zbv".
std::string_view name_of(PipelineAlgorithm algorithm);

struct PipelineSchedule {
  std::string name;  // for pictures and messages: "1f1b", "interleaved 1f1b", …
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;  // of each rank, in order

  bool splits_backward() const;
};

// The computations of every rank; with_communication() adds the transfers.
//
// group: microbatches that a chunk takes before the next chunk's turn
// (microbatch_group_size_per_virtual_pipeline_stage); 0: num_ranks. Read only by the interleaved form.
//
// Every number of microbatches from 1 is known, and any number of ranks, except:
//   1F1B    of several chunks: a loop; group >= num_ranks; num_microbatches % group is 0 or at least num_ranks, so
//           num_microbatches >= num_ranks; a group larger than num_microbatches is cut to it
//   ZB-H1   one chunk
//   ZB-V    two chunks in a V
// InternalError for other shapes; pipeline_options.h says so in the user's words.
PipelineSchedule make_pipeline_schedule(PipelineAlgorithm algorithm, const PipelineShape& shape, int group = 0);

// Every microbatch forward through all stages and nothing else: for evaluation. Computations, as above; any shape.
PipelineSchedule make_forward_schedule(const PipelineShape& shape);

// Inserts sends and receives into an order of computations, for every rank; transfers that are there already are made
// anew. Neighbouring stages of one rank need none.
//
// There is one total order of all transfers and computations that each rank's list agrees with, so the lists cannot
// deadlock, even where a transfer holds back those behind it (NCCL). It is the order of their ends when F, I and W take
// one unit each and a transfer none: a send stands behind what it sends, with no other computation between, its receive
// before what the peer computes at that moment, so transfers lie under computation.
//
// InternalError when the order itself cannot be computed (a cycle, something others read is missing, something twice),
// naming the ranks' next actions.
PipelineSchedule with_communication(PipelineSchedule computations);

// What a rank holds after each of its actions: microbatches of its chunks whose activations are alive, from the
// beginning of F to the end of B or W; a microbatch without backward is let go at the end of F. One number an action.
std::vector<int> live_activations(const std::vector<Action>& actions);

// "rank 0: F0.3" for every rank, one a line, indented; next[rank] is an index into its list. For messages.
std::string next_actions_text(const PipelineSchedule& schedule, const std::vector<size_t>& next);

}  // namespace megalith
