// See fault_options.h. Rules with other options are in config.cc.
#include "train/fault_options.h"

namespace megalith {

void FaultOptions::visit(OptionVisitor& v) {
  v.group("Faults and divergence");
  v.choice("fault_tolerance", fault_tolerance, {"none", "replicas", "restart"},
           "What a run of several ranks does when one ends, hangs or is cut off. none: it ends. replicas: the "
           "data-parallel replica of that rank leaves, the others repeat the step that was cut and go on, and a "
           "replacement that is started with the same command and RANK joins between two steps. restart: the others "
           "wait up to distributed_timeout_minutes for such a replacement, which takes the rank's part from another "
           "one's memory, and all go on from the last memory_checkpoint_interval.")
      .changes_numbers(false);
  v.field("memory_checkpoint_interval", memory_checkpoint_interval,
          "With fault_tolerance restart, how often each rank keeps its weights, optimizer state and counters in host "
          "memory, and a copy in that of another rank: at most so many steps are made again.")
      .unit("optimizer steps")
      .at_least(1)
      .changes_numbers(false);
  v.field("fault_patience_s", fault_patience_s,
          "With fault_tolerance, the longest wait for a rank in a collective, once the first step is made; then it "
          "counts as lost. Before, distributed_timeout_minutes counts. It must be longer than any rank's evaluation, "
          "checkpoint or pause that others wait for.")
      .unit("seconds")
      .within(1, 86400)
      .changes_numbers(false);
  v.field("check_determinism", check_determinism,
          "At iterations divisible by this, run forward and backward twice and compare every bit of losses, gradients "
          "and collectives; between all steps, compare weights and optimizer state with what the last update left. A "
          "difference ends the run, names the rank, and exits with 16 (transient: resume) or 17 (persistent). Needs "
          "deterministic_mode; every step is read at once. 0: off.")
      .unit("optimizer steps")
      .at_least(0)
      .changes_numbers(false);
  v.field("check_types", check_types,
          "Follow what ranks hold of every tensor before the run begins, as doctor --types does, and refuse a "
          "layout in which a sum or a gathering is missing, doubled or over other ranks. Takes a second or two; "
          "always on in debug builds.")
      .changes_numbers(false);
  v.choice(
      "loss_spike_action", loss_spike_action, {"none", "warn", "skip", "rollback"},
      "What is done about a step whose loss jumps. warn: an event in log, metrics, page and TensorBoard. skip: the "
      "step is not made. rollback: nor is any since the newest checkpoint, whose weights and optimizer state are "
      "loaded; the run goes on after the samples that were read. With skip and rollback a loss that is not finite "
      "is a jump too, instead of the run's end.");
  v.field("loss_spike_threshold", loss_spike_threshold,
          "A loss jumps when it lies above the median of the last loss_spike_window losses by more than this many "
          "standard deviations, taken as 1.4826 times their median absolute deviation, at least a thousandth of the "
          "median.")
      .above(0);
  v.field("loss_spike_window", loss_spike_window,
          "Losses that a jump is judged by: those up to the step before the last one, because an accelerator's step is "
          "issued before the last one's loss is read. Nothing jumps before half of them, or 16 if that is less, are "
          "there.")
      .unit("optimizer steps")
      .within(4, 4096);
  v.field("loss_spike_max_rollbacks", loss_spike_max_rollbacks,
          "Jumps of the loss that a run goes back for, over all its starts; the next one ends it.")
      .at_least(1);
}

}  // namespace megalith
