#include "cli/train_eras.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"
#include "kinds/kinds.h"
#include "launch/hang_report.h"
#include "storage/object_mirror.h"

namespace megalith {
namespace {

// Eras in a row without a step, after which something else is wrong than a lost rank.
constexpr int kMostVain = 5;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string newest_checkpoint_text(const Config& config) {
  const std::optional<std::string>& save = config.checkpoint.save;
  if (!save) return "nothing was saved: the run has no --save";
  const std::vector<int64_t> iterations = list_checkpoints(local_path(*save));
  if (iterations.empty()) return fmt::format("{} (save) has no checkpoint yet", *save);
  const int64_t newest = *std::max_element(iterations.begin(), iterations.end());
  return fmt::format("the newest checkpoint is {}/{}; start again with --load {}", *save, checkpoint_folder_name(newest),
                     *save);
}

TrainingEras::TrainingEras(CommandContext& context, Session& session, const Launch& launch, const StopRequest& stop)
    : context_(context),
      session_(session),
      launch_(launch),
      stop_(stop),
      mesh_(Mesh::from_options(session.resolved->config.parallel, launch.world_size)),
      axis_(replica_axis(session.resolved->derived.data_parallel)) {
  for (int rank = 0; rank < launch.world_size; ++rank) era_.seats.push_back(rank);
  if (!session.resolved->config.train.faults.restarts()) return;
  memory_.emplace(launch.is_one_machine() ? 1 : launch.local_world_size);
}

RollRules TrainingEras::rules() const {
  RollRules rules;
  rules.is_stopped = [&stop = stop_] { return stop.load() != 0; };
  if (memory_) {
    rules.wait_s = session_.resolved->config.parallel.distributed_timeout_minutes * 60;
    rules.choose = [all = static_cast<size_t>(launch_.world_size)](const std::vector<int>& here) {
      return here.size() == all ? here : std::vector<int>();
    };
    return rules;
  }
  rules.choose = [mesh = mesh_, axis = axis_](const std::vector<int>& here) {
    return whole_replicas(mesh, axis, here);
  };
  return rules;
}

void TrainingEras::connect() {
  const Resolved& run = *session_.resolved;
  const Mesh mesh = Mesh::from_options(run.config.parallel, run.derived.world_size);
  const auto rank = narrow<int>(std::find(era_.seats.begin(), era_.seats.end(), launch_.rank) - era_.seats.begin());
  GroupFactory factory = session_.world->factory();
  if (session_.watch) factory = watched_factory(std::move(factory), session_.watch);
  session_.groups = Groups(mesh, rank, factory);
}

EraHooks TrainingEras::hooks() {
  EraHooks hooks;
  hooks.since_start = since_start_;
  C10dWorld* const world = session_.world.get();
  if (memory_) {
    hooks.keep = [this] { keep_in_memory(*trainer_); };
  } else if (session_.groups.rank == 0) {
    hooks.has_joiners = [this, world] { return world->has_joiners(rules()); };
  }
  if (!session_.device.is_cpu()) {
    hooks.check_ranks = [world] {
      if (world->is_lost()) throw CommunicationError(world->loss());
    };
  }
  hooks.on_first_step = [this, world] {
    world->begin_patience();
    num_vain_ = 0;
  };
  return hooks;
}

// Where some part is in no memory any more, all ranks load as at a start.
void TrainingEras::begin_from_memory(Trainer& trainer) {
  Group& world = *session_.groups.world;
  last_made_ = static_cast<int64_t>(world.reduced(static_cast<double>(last_made_), ReduceOp::kMax, "steps made"));
  std::string why;
  std::optional<at::Tensor> part;
  if (era_.newest_iteration() >= 0) part = memory_->recover(world, why);
  if (part) {
    const CarriedRun carried = trainer.unpack_state(*part);
    trainer.take_over(&carried, /*giver=*/0);
  } else {
    trainer.load();
  }
  if (!is_first()) {
    std::vector<int> replaced;
    for (size_t rank = 0; rank < era_.seats.size(); ++rank) {
      if (era_.iterations.at(rank) < 0) replaced.push_back(era_.seats[rank]);
    }
    const int64_t iteration = trainer.iteration();
    std::string text = fmt::format("{} ({}): all {} ranks go on from iteration {}, ",
                                   replaced.empty() ? "ranks lost one another" : ranks_text(replaced) + " came anew",
                                   reason_, era_.seats.size(), iteration);
    text += part ? "kept in memory" : iteration > 0 ? "loaded from disk" : "the beginning";
    if (!why.empty()) text += fmt::format(", because {}", why);
    if (last_made_ > iteration) text += fmt::format("; iterations {} to {} are made again", iteration + 1, last_made_);
    if (launch_.rank == era_.seats.front()) context_.log.warn("{}", text);
    texts_.push_back(text);
    events_.push_back({.iteration = iteration, .kind = "ranks_restarted", .text = std::move(text)});
  }
  trainer_ = &trainer;
  keep_in_memory(trainer);
}

void TrainingEras::keep_in_memory(const Trainer& trainer) {
  if (memory_->keep(trainer.pack_state(), trainer.iteration(), *session_.groups.world)) return;
  context_.log.warn("what ranks keep in memory after iteration {} was changed on its way: the last one stays",
                    trainer.iteration());
}

void TrainingEras::begin(Trainer& trainer) {
  if (memory_) {
    begin_from_memory(trainer);
  } else if (is_first() || era_.newest_iteration() < 0) {
    trainer.load();
  } else {
    trainer.take_over(carried_ ? &*carried_ : nullptr, era_.giver());
  }
  trainer.announce(std::exchange(events_, {}), last_made_);
  carried_.reset();
  has_begun_ = true;
}

void TrainingEras::keep(std::unique_ptr<Trainer> trainer) {
  if (trainer && has_begun_) events_ = trainer->take_events();
  trainer_ = nullptr;
  if (trainer && memory_) {
    last_made_ = std::max(last_made_, trainer->iteration());
  } else if (trainer && has_begun_) {
    carried_ = trainer->carry();
    if (carried_->lacks_step) cut_ = std::move(trainer);
  }
  has_begun_ = false;
}

// Another rank has made the step in whose last exchange this one was cut off.
void TrainingEras::complete_step(const Era& era) {
  if (carried_ && carried_->train.iteration != era.newest_iteration()) {
    const bool is_next = carried_->train.iteration + 1 == era.newest_iteration();
    if (is_next && cut_ && !era.numbers.empty()) {
      carried_ = cut_->carry_completed(era.numbers);
    } else {
      carried_.reset();  // taken from others, like a replacement
    }
  }
  cut_.reset();
}

std::vector<EventRecord> TrainingEras::events_of(const Era& era, const std::string& reason,
                                                 int64_t batch_before) const {
  std::vector<EventRecord> events;
  const int64_t iteration = std::max<int64_t>(era.newest_iteration(), 0);
  const int64_t batch = session_.resolved->derived.batches.samples(0);
  const std::string size =
      batch == batch_before ? "" : fmt::format("; a step has {} samples now, and had {}", batch, batch_before);
  if (!era.left.empty()) {
    events.push_back({.iteration = iteration,
                      .kind = "ranks_left",
                      .text = fmt::format("{} left after iteration {} ({}): {} of {} ranks go on and make iteration {} "
                                          "with all its samples{}",
                                          ranks_text(era.left), iteration, reason, era.seats.size(), mesh_.world_size(),
                                          iteration + 1, era.joined.empty() ? size : "")});
  }
  if (!era.joined.empty()) {
    events.push_back({.iteration = iteration,
                      .kind = "ranks_joined",
                      .text = fmt::format("{} joined after iteration {} with the weights of rank {}: {} of {} ranks go "
                                          "on{}",
                                          ranks_text(era.joined), iteration,
                                          era.seats.at(static_cast<size_t>(era.giver())), era.seats.size(),
                                          mesh_.world_size(), size)});
  }
  return events;
}

void TrainingEras::next() {
  const std::string loss = session_.world->loss();
  const std::string reason = loss.empty() ? "no reason known" : first_line(loss);
  reason_ = reason;
  if (!loss.empty()) context_.log.warn("{}", loss);
  if (session_.world->is_late()) {
    context_.log.warn("rank {} comes to a run under way, and waits to join it", launch_.rank);
  }
  RollEntry entry;
  if (carried_) entry = {.iteration = carried_->train.iteration, .numbers = carried_->numbers};
  if (memory_) entry.iteration = memory_->iteration();
  const Era era = session_.world->call_roll(entry, rules(), [this](const Era& without) {
    // Others may make the cut step again, whose sums are of another order: equal iterations are not equal bits.
    carried_.reset();
    cut_.reset();
    events_.clear();  // others record them
    context_.log.warn("{} {} on without rank {}, whose replica is not whole or did not answer in time: this process "
                      "waits to join them again",
                      ranks_text(without.seats), without.seats.size() == 1 ? "goes" : "go", launch_.rank);
  });
  const bool was_late = session_.world->is_late();
  const int64_t batch_before = session_.resolved->derived.batches.samples(0);
  complete_step(era);
  enter(era);
  num_vain_ = was_late ? 0 : num_vain_ + 1;
  if (num_vain_ > kMostVain) {
    throw std::runtime_error(
        fmt::format("the ranks lost one another {} times in a row without a step between: {}\n  {}", num_vain_, reason,
                    newest_checkpoint_text(session_.resolved->config)));
  }
  for (EventRecord& event : events_of(era, reason, batch_before)) {
    texts_.push_back(event.text);
    if (launch_.rank == era.seats.front()) context_.log.warn("{}", event.text);
    events_.push_back(std::move(event));
  }
}

void TrainingEras::enter(const Era& era) {
  session_.groups = Groups::single();  // ends the last era's connections
  session_.world = session_.world->next(era);
  const auto num_ranks = narrow<int>(std::ssize(era.seats));
  const Resolved& first = first_ ? *first_ : *session_.resolved;
  auto resolved = resolve_config(all_kinds(), context_.config_inputs(), num_ranks, /*extra=*/{},
                                 {.opens_data = true,
                                  .weights = CommandNeeds::Weights::kOptional,
                                  .writes_run = true,
                                  .adjust = [&](Config& config) { adjust_to_era(config, first, num_ranks); }});
  session_.resolved.swap(resolved);
  if (!first_) first_ = std::move(resolved);
  era_ = era;
  const Mesh mesh = Mesh::from_options(session_.resolved->config.parallel, num_ranks);
  const auto rank = narrow<int>(std::find(era.seats.begin(), era.seats.end(), launch_.rank) - era.seats.begin());
  const std::string position = mesh.describe(rank);
  const size_t space = position.find(' ', sizeof("rank"));
  context_.log.set_rank(rank, num_ranks, space == std::string::npos ? "" : position.substr(space + 1));
}

}  // namespace megalith
