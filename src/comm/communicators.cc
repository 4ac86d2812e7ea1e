#include "comm/communicators.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"

namespace megalith {

bool has_priority(std::string_view axis) {
  constexpr std::string_view kFirst[] = {"tp", "cp", "cp_ulysses", "cp_ring", "pp", "pp_backward"};
  return std::ranges::find(kFirst, axis) != std::end(kFirst);
}

// Creation order excludes deadlocks (groups.h).
void connect_for_training(const Groups& groups, bool has_experts) {
  // Split axes use their halves.
  const bool has_replicas = groups.dp_replicate->size() > 1;
  groups.tp->connect();
  if (groups.cp_ulysses->size() == 1 || groups.cp_ring->size() == 1) groups.cp->connect();
  groups.dp_cp->connect();
  if (has_experts) {
    for (const Groups::Pointer& group : {groups.etp, groups.edp, groups.etp_ep}) group->connect();
  }
  if (has_replicas) {
    for (const Groups::Pointer& group : {groups.dp_replicate, groups.dp_shard_cp}) group->connect();
  }
  if (has_replicas && has_experts) {
    for (const Groups::Pointer& group : {groups.edp_shard, groups.edp_replicate}) group->connect();
  }
  for (const Groups::Pointer& group : {groups.cp_ulysses, groups.cp_ring}) group->connect();
}

PipelineView::PipelineView(std::shared_ptr<Group> forward, std::shared_ptr<Group> backward, std::string axis)
    : GroupView(std::move(forward), std::move(axis)), backward_(std::move(backward)) {
  MEGALITH_CHECK(backward_->ranks() == ranks() && backward_->rank() == rank(), "a pipeline of two sets of ranks");
}

void PipelineView::connect() {
  GroupView::connect();
  backward_->connect();
}

bool PipelineView::is_connected() const { return GroupView::is_connected() && backward_->is_connected(); }

Group::State PipelineView::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  const auto goes_back = [](const Transfer& transfer) { return (transfer.tag & kBackwardTag) != 0; };
  const bool is_backward = std::ranges::any_of(transfers, goes_back);
  MEGALITH_CHECK(!is_backward || std::ranges::all_of(transfers, goes_back),
                 "{}: one batch goes both ways through the pipeline", record->label);
  return is_backward ? start_send_receive_on(*backward_, transfers, record)
                     : GroupView::start_send_receive(transfers, record);
}

}  // namespace megalith
