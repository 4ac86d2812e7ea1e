#include "planner/pipeline_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace megalith {
namespace {

// Beyond them files are broken.
constexpr int64_t kMostRanks = 1 << 16;
constexpr int64_t kMostMicrobatches = 1 << 24;

const std::vector<TimedAction>& of_rank(const PipelineTrace& trace, int rank) {
  return trace.ranks[static_cast<size_t>(rank)];
}

int read_count(const Json& object, std::string_view key, int64_t most, std::string_view where) {
  const auto value = json_get<int64_t>(object, key, where);
  if (value < 1 || value > most) {
    throw UserError(fmt::format("{}: {} is {}, not between 1 and {}", where, key, value, most));
  }
  return static_cast<int>(value);
}

StageOrder read_order(const Json& object, std::string_view where) {
  const auto word = json_get<std::string>(object, "order", where);
  if (word != "loop" && word != "vee") {
    throw UserError(fmt::format("{}: order is '{}', not loop or vee", where, word));
  }
  return word == "loop" ? StageOrder::kLoop : StageOrder::kVee;
}

TimedAction read_action(const Json& entry, const PipelineShape& shape, const std::string& where) {
  const auto text = json_get<std::string>(entry, "action", where);
  const auto action = parse_action(text);
  if (!action) throw UserError(fmt::format("{}: '{}' is no action", where, text));
  TimedAction timed{*action, json_get<double>(entry, "start_s", where), json_get<double>(entry, "end_s", where)};
  const auto live = json_get<int64_t>(entry, "live", where);
  if (action->chunk >= shape.num_chunks || action->microbatch >= shape.num_microbatches ||
      action->peer >= shape.num_ranks) {
    throw UserError(fmt::format("{}: {} does not belong to {} ranks with {} chunks and {} microbatches", where, text,
                                shape.num_ranks, shape.num_chunks, shape.num_microbatches));
  }
  // No step takes years; bounded sums are finite.
  constexpr double kLongest = 1e9;
  if (!(std::abs(timed.start) <= kLongest) || !(std::abs(timed.end) <= kLongest) || timed.end < timed.start) {
    throw UserError(fmt::format("{}: {} from {} to {} s", where, text, timed.start, timed.end));
  }
  if (live < 0 || live > static_cast<int64_t>(shape.num_chunks) * shape.num_microbatches) {
    throw UserError(fmt::format("{}: {} activations are alive after {}", where, live, text));
  }
  timed.live = static_cast<int>(live);
  return timed;
}

const Json& read_array(const Json& value, const std::string& where) {
  if (!value.is_array()) throw UserError(fmt::format("{} is no list", where));
  return value;
}

}  // namespace

double PipelineTrace::start() const {
  double first = HUGE_VAL;
  for (const std::vector<TimedAction>& actions : ranks) {
    for (const TimedAction& timed : actions) {
      if (!is_communication(timed.action.kind)) first = std::min(first, timed.start);
    }
  }
  return first == HUGE_VAL ? 0 : first;
}

double PipelineTrace::makespan() const {
  const double first = start();
  double last = first;
  for (const std::vector<TimedAction>& actions : ranks) {
    for (const TimedAction& timed : actions) {
      if (!is_communication(timed.action.kind)) last = std::max(last, timed.end);
    }
  }
  return last - first;
}

double PipelineTrace::bubble_fraction(int rank) const {
  const double whole = makespan();
  double busy = 0;
  for (const TimedAction& timed : of_rank(*this, rank)) {
    if (!is_communication(timed.action.kind)) busy += timed.end - timed.start;
  }
  return whole > 0 ? 1 - busy / whole : 0;
}

int PipelineTrace::peak_live(int rank) const {
  int peak = 0, before = 0;
  for (const TimedAction& timed : of_rank(*this, rank)) {
    peak = std::max({peak, timed.live, timed.action.kind == ActionKind::kForward ? before + 1 : before});
    before = timed.live;
  }
  return peak;
}

PipelineTrace make_trace(const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
  return {schedule.name, schedule.shape, simulation.ranks};
}

std::string pipeline_trace_json(const PipelineSchedule& schedule, const std::vector<std::vector<TimedAction>>& ranks) {
  OrderedJson lists = OrderedJson::array();
  for (const std::vector<TimedAction>& actions : ranks) {
    OrderedJson list = OrderedJson::array();
    for (const TimedAction& timed : actions) {
      list.push_back(OrderedJson{
          {"action", timed.action.text()}, {"start_s", timed.start}, {"end_s", timed.end}, {"live", timed.live}});
    }
    lists.push_back(std::move(list));
  }
  OrderedJson trace{{"schedule", schedule.name},
                    {"num_ranks", schedule.shape.num_ranks},
                    {"num_chunks", schedule.shape.num_chunks},
                    {"num_microbatches", schedule.shape.num_microbatches},
                    {"order", schedule.shape.order == StageOrder::kLoop ? "loop" : "vee"}};
  trace["ranks"] = std::move(lists);
  return dump_json(trace);
}

PipelineTrace parse_pipeline_trace(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  PipelineTrace trace;
  trace.schedule = json_get<std::string>(json, "schedule", where);
  trace.shape.num_ranks = read_count(json, "num_ranks", kMostRanks, where);
  trace.shape.num_chunks = read_count(json, "num_chunks", kMostRanks, where);
  trace.shape.num_microbatches = read_count(json, "num_microbatches", kMostMicrobatches, where);
  trace.shape.order = read_order(json, where);
  if (trace.shape.order == StageOrder::kVee && trace.shape.num_chunks != 2) {
    throw UserError(fmt::format("{}: order vee with {} chunks; it has two", where, trace.shape.num_chunks));
  }
  const Json& ranks = read_array(get_member(json, "ranks", where), fmt::format("{}: ranks", where));
  if (ranks.size() != static_cast<size_t>(trace.shape.num_ranks)) {
    throw UserError(fmt::format("{}: lists of {} ranks, num_ranks is {}", where, ranks.size(), trace.shape.num_ranks));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string of_list = fmt::format("{}: rank {}", where, rank);
    std::vector<TimedAction> actions;
    for (const Json& entry : read_array(ranks[rank], of_list)) {
      actions.push_back(read_action(entry, trace.shape, fmt::format("{}, action {}", of_list, actions.size())));
    }
    trace.ranks.push_back(std::move(actions));
  }
  return trace;
}

PipelineTrace load_pipeline_trace(const std::filesystem::path& path) {
  return parse_pipeline_trace(read_file(path), path.string());
}

PipelineCosts measured_costs(const PipelineTrace& trace) {
  struct Sum {
    double time = 0;
    int count = 0;
    double mean() const { return count == 0 ? 0 : time / count; }
  };
  std::vector<std::array<Sum, 4>> sums(static_cast<size_t>(trace.shape.num_stages()));  // F, B, I, W
  for (int rank = 0; rank < trace.shape.num_ranks; ++rank) {
    for (const TimedAction& timed : of_rank(trace, rank)) {
      if (is_communication(timed.action.kind)) continue;
      const auto stage = static_cast<size_t>(trace.shape.stage_of(rank, timed.action.chunk));
      Sum& sum = sums[stage][static_cast<size_t>(timed.action.kind)];
      sum.time += timed.end - timed.start;
      sum.count += 1;
    }
  }
  PipelineCosts costs;
  for (const auto& [forward, backward, input, weight] : sums) {
    MEGALITH_CHECK(forward.count > 0, "stage {} has no forward", costs.stages.size());
    const double half = backward.mean() / 2;
    costs.stages.push_back(input.count > 0 ? StageTimes{forward.mean(), input.mean(), weight.mean()}
                                           : StageTimes{forward.mean(), half, half});
  }
  return costs;
}

std::vector<std::string> compare_with_schedule(const PipelineTrace& trace, const PipelineSchedule& schedule) {
  const PipelineShape &ran = trace.shape, &said = schedule.shape;
  if (ran != said) {
    return {fmt::format(
        "the run had {} ranks of {} chunks in a {} and {} microbatches, the schedule has {} of {} in a "
        "{} and {}",
        ran.num_ranks, ran.num_chunks, ran.order == StageOrder::kLoop ? "loop" : "V", ran.num_microbatches,
        said.num_ranks, said.num_chunks, said.order == StageOrder::kLoop ? "loop" : "V", said.num_microbatches)};
  }
  std::vector<std::string> differences;
  for (int rank = 0; rank < said.num_ranks; ++rank) {
    const std::vector<TimedAction>& happened = of_rank(trace, rank);
    const std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(rank)];
    const std::vector<int> live = live_activations(actions);
    for (size_t index = 0; index < std::max(happened.size(), actions.size()); ++index) {
      const std::string did = index < happened.size() ? happened[index].action.text() : "nothing";
      const std::string should = index < actions.size() ? actions[index].text() : "nothing";
      if (did != should) {
        differences.push_back(fmt::format("rank {}: action {} was {}, the schedule has {}", rank, index, did, should));
        break;
      }
      if (happened[index].live != live[index]) {
        differences.push_back(fmt::format("rank {}: after action {}, {}, {} were alive, the schedule says {}", rank,
                                          index, did, happened[index].live, live[index]));
        break;
      }
    }
  }
  return differences;
}

}  // namespace megalith
