// Ranks as threads on pretend devices: each rank has one, and LibTorch's thread for backward of that device.
#pragma once

#include "comm/thread_devices.h"
#include "layouts/rows.h"

namespace megalith::test {

// PRETEND_DEVICES of them, which the tests' entries in ctest set.
const ThreadDevices& devices_of_ranks();

// How often each rank's host waited in a step of the layout, apart from what the check itself reads and the numbers of
// the step, which training reads one step late.
struct WaitsOfStep {
  int64_t count = 0;
  std::string text;  // a line for each place
};
WaitsOfStep waits_of_step(LayoutRow& row);

// Hooks with those devices.
CheckHooks on_devices(CheckHooks hooks = {});

// What a mistake left undone on some stream is not for the next run.
void forget_what_streams_hold();

}  // namespace megalith::test
