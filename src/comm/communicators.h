// Communicators: priorities, early connection, a pipeline's two directions.
#pragma once

#include <memory>
#include <string_view>

#include "comm/group_view.h"
#include "comm/groups.h"

namespace megalith {

// True if results are awaited at once (tp, cp, pipeline stages), so the device should prioritise them. Names
// communicators of several axes.
bool has_priority(std::string_view axis);

// Connects what training steps use, in the same order on every rank; the rest connect at first use.
void connect_for_training(const Groups& groups, bool has_experts);

// Tag bit of transfers against the pipeline's direction: gradients.
constexpr int kBackwardTag = 1 << 30;

// A communicator per direction: a GPU's does one transfer after another, so a gradient would queue after an activation
// still awaited. Collectives use the first.
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
