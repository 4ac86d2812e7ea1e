// The table of tasks, and rules between a run's task and its model, data and samples.
#pragma once

#include <memory>
#include <vector>

#include "kinds/task_setup.h"
#include "train/config.h"
#include "train/task.h"

namespace megalith {

// UserError for options the task cannot work with.
std::unique_ptr<Task> make_task(const TaskOptions& options, const TaskSetup& setup);

TaskSetup make_task_setup(const Resolved& resolved);

// Errors for missing requirements of the task, and for options of other tasks' data.
void check_task_rules(const Resolved& resolved, std::vector<UserError>& errors);

}  // namespace megalith
