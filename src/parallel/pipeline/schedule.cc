#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "parallel/pipeline/schedule_algorithms.h"

namespace megalith {
namespace {

// By ActionKind: its letter, and a transfer's arrow.
constexpr std::string_view kLetters = "FBIWFFBB";
constexpr std::string_view kArrows = "    ><><";

bool ends_activations(ActionKind kind) { return kind == ActionKind::kBackward || kind == ActionKind::kWeightBackward; }

// Takes a number without sign or blanks from the front of the text.
std::optional<int> take_number(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() && text[length] >= '0' && text[length] <= '9') ++length;
  if (length == 0 || length > 9) return std::nullopt;
  int value = 0;
  for (const char digit : text.substr(0, length)) value = value * 10 + (digit - '0');
  text.remove_prefix(length);
  return value;
}

bool take_letter(std::string_view& text, char letter) {
  if (text.empty() || text.front() != letter) return false;
  text.remove_prefix(1);
  return true;
}

void check_positive(const PipelineShape& shape) {
  MEGALITH_CHECK(shape.num_ranks >= 1 && shape.num_chunks >= 1 && shape.num_microbatches >= 1,
                 "{} ranks, {} chunks, {} microbatches", shape.num_ranks, shape.num_chunks, shape.num_microbatches);
  MEGALITH_CHECK(shape.order == StageOrder::kLoop || shape.num_chunks == 2, "a V of {} chunks", shape.num_chunks);
}

std::string schedule_name(PipelineAlgorithm algorithm, const PipelineShape& shape) {
  if (algorithm == PipelineAlgorithm::k1f1b && shape.num_chunks > 1) return "interleaved 1f1b";
  return std::string(name_of(algorithm));
}

}  // namespace

bool is_communication(ActionKind kind) { return kind >= ActionKind::kSendForward; }

std::string Action::text() const {
  const auto index = static_cast<size_t>(kind);
  std::string result = fmt::format("{}{}.{}", kLetters[index], chunk, microbatch);
  if (is_communication(kind)) result += fmt::format("{}{}", kArrows[index], peer);
  return result;
}

std::optional<Action> parse_action(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const char letter = text.front();
  text.remove_prefix(1);
  Action action;
  const auto chunk = take_number(text);
  if (!chunk || !take_letter(text, '.')) return std::nullopt;
  const auto microbatch = take_number(text);
  if (!microbatch) return std::nullopt;
  char arrow = ' ';
  if (!text.empty()) {
    arrow = text.front();
    text.remove_prefix(1);
    const auto peer = take_number(text);
    if (arrow == ' ' || !peer || !text.empty()) return std::nullopt;
    action.peer = *peer;
  }
  action.chunk = *chunk;
  action.microbatch = *microbatch;
  for (size_t index = 0; index < kLetters.size(); ++index) {
    if (kLetters[index] != letter || kArrows[index] != arrow) continue;
    action.kind = static_cast<ActionKind>(index);
    return action;
  }
  return std::nullopt;
}

int PipelineShape::stage_of(int rank, int chunk) const {
  if (order == StageOrder::kLoop) return chunk * num_ranks + rank;
  return chunk == 0 ? rank : 2 * num_ranks - 1 - rank;
}

int PipelineShape::rank_of(int stage) const {
  if (order == StageOrder::kLoop) return stage % num_ranks;
  return stage < num_ranks ? stage : 2 * num_ranks - 1 - stage;
}

int PipelineShape::chunk_of(int stage) const { return stage / num_ranks; }

std::string_view name_of(PipelineAlgorithm algorithm) {
  switch (algorithm) {
    case PipelineAlgorithm::kGpipe:
      return "gpipe";
    case PipelineAlgorithm::k1f1b:
      return "1f1b";
    case PipelineAlgorithm::kZeroBubble:
      return "zero-bubble";
    case PipelineAlgorithm::kZeroBubbleV:
      return "zbv";
  }
  MEGALITH_CHECK(false, "algorithm {}", static_cast<int>(algorithm));
}

bool PipelineSchedule::splits_backward() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return action.kind == ActionKind::kWeightBackward; });
  });
}

PipelineSchedule make_pipeline_schedule(PipelineAlgorithm algorithm, const PipelineShape& shape, int group) {
  check_positive(shape);
  PipelineSchedule schedule{schedule_name(algorithm, shape), shape, {}};
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    switch (algorithm) {
      case PipelineAlgorithm::kGpipe:
        schedule.ranks.push_back(gpipe_actions(shape, rank));
        break;
      case PipelineAlgorithm::k1f1b:
        schedule.ranks.push_back(shape.num_chunks == 1 ? one_forward_one_backward_actions(shape, rank)
                                                       : interleaved_actions(shape, rank, group));
        break;
      case PipelineAlgorithm::kZeroBubble:
        schedule.ranks.push_back(zero_bubble_actions(shape, rank));
        break;
      case PipelineAlgorithm::kZeroBubbleV:
        schedule.ranks.push_back(zero_bubble_v_actions(shape, rank));
        break;
    }
  }
  return schedule;
}

PipelineSchedule make_forward_schedule(const PipelineShape& shape) {
  check_positive(shape);
  std::vector<Action> actions;
  for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
    for (int microbatch = 0; microbatch < shape.num_microbatches; ++microbatch) {
      actions.push_back({ActionKind::kForward, chunk, microbatch});
    }
  }
  return {"forward", shape, std::vector<std::vector<Action>>(static_cast<size_t>(shape.num_ranks), actions)};
}

std::vector<int> live_activations(const std::vector<Action>& actions) {
  std::set<std::pair<int, int>> with_backward;
  for (const Action& action : actions) {
    if (ends_activations(action.kind)) with_backward.emplace(action.chunk, action.microbatch);
  }
  std::vector<int> result;
  result.reserve(actions.size());
  int live = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kForward && with_backward.contains({action.chunk, action.microbatch})) ++live;
    if (ends_activations(action.kind)) --live;
    result.push_back(live);
  }
  return result;
}

std::string next_actions_text(const PipelineSchedule& schedule, const std::vector<size_t>& next) {
  std::string result;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Action>& actions = schedule.ranks[rank];
    const bool is_done = next[rank] >= actions.size();
    result += fmt::format(
        "{}  rank {}: {}", rank == 0 ? "" : "\n", rank,
        is_done ? "done" : fmt::format("{} (action {} of {})", actions[next[rank]].text(), next[rank], actions.size()));
  }
  return result;
}

}  // namespace megalith
