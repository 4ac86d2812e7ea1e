// How the communicators of a run are made and when: which go first on a device, which a training run connects before
// its first step, and the two of a pipeline.
#pragma once

#include <memory>
#include <string_view>

#include "comm/group_view.h"
#include "comm/groups.h"

namespace megalith {

// Whether what travels over the axis is waited for at once, so that a device does it before other work: layers of tp
// and cp wait for it, and so do the stages of a pipeline. A communicator of several axes is named after such a one.
bool has_priority(std::string_view axis);

// Connects what a training step uses of `groups`, so that no step waits for connections: every rank in one order. What
// is left connects at its first use.
void connect_for_training(const Groups& groups, bool has_experts);

// A transfer whose tag has this bit goes against the direction of a pipeline: gradients do.
constexpr int kBackwardTag = 1 << 30;

// The ranks of a pipeline. What goes forward and what goes backward travels over two communicators: a communicator of
// a GPU does one transfer after another, so that a gradient to be sent would wait behind an activation that has not
// come. Everything else goes over the first.
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
