// How a run's communicators are made: device priorities, which connect before the first step, and a pipeline's two.
#pragma once

#include <memory>
#include <string_view>

#include "comm/group_view.h"
#include "comm/groups.h"

namespace megalith {

// True if results over the axis are awaited at once (tp, cp, pipeline stages), so a device should prioritise them. A
// communicator of several axes is named after such a one.
bool has_priority(std::string_view axis);

// Connects what a training step uses of `groups`, in the same order on every rank, so no step waits for connections.
// The rest connect at first use.
void connect_for_training(const Groups& groups, bool has_experts);

// Tag bit of transfers against the direction of a pipeline: gradients.
constexpr int kBackwardTag = 1 << 30;

// A pipeline's ranks, with one communicator per direction: a GPU's communicator does one transfer after another, so a
// gradient to be sent would wait behind an activation that has not come. Everything else uses the first.
class PipelineView : public GroupView {
 public:
  PipelineView(std::shared_ptr<Group> forward, std::shared_ptr<Group> backward, std::string axis);

  void connect() override;
  bool is_connected() const override;

 protected:
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;

 private:
  std::shared_ptr<Group> backward_;
};

}  // namespace megalith
