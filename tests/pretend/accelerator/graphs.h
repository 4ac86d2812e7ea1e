// Graphs of a pretend device (device/graph.h): lists of what was issued while one was captured.
//
// A capture does what is issued at once, because results' shapes are known only then, and takes it back at its end:
// every block of the device holds what it held before, and the graph's own memory is NaN. A replay does the list again,
// at the addresses that it was given, with the numbers that it was given. Refused, as on a GPU: waits of the host,
// copies between host and device (a replay would read what is at that address then), work on another stream, waits for
// events from outside, a capture of the main stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

namespace megalith::pretend {

using Task = std::function<void()>;

bool is_captured(c10::DeviceIndex device);
// True if it is this stream that is captured.
bool is_captured(c10::DeviceIndex device, c10::StreamId stream);

// c10::Error where the device is being captured: a graph cannot hold `what`.
void refuse_in_graph(c10::DeviceIndex device, const std::string& what);
// The same where it is this thread that captures: others may.
void refuse_in_own_graph(c10::DeviceIndex device, const std::string& what);

// c10::Error where the device is being captured, and this thread's stream of it is another one.
void check_stream_of_graph(c10::DeviceIndex device);

// This thread has just done something on its stream of the device; a graph that is being captured keeps it. As
// check_stream_of_graph().
void keep_in_graph(c10::DeviceIndex device, Task task);
// The same for memory that changes hands, whichever thread frees it.
void keep_memory_in_graph(c10::DeviceIndex device, Task task);

// An operator that has just run, of operators whose results are its own tensors: a replay calls it again with the
// arguments, and copies its results to the same addresses.
using BoxedKernel = void (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void keep_call_in_graph(const c10::OperatorHandle& op, BoxedKernel kernel, at::Device device,
                        const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack);

// Runs at once what is no operator: an emulated kernel, a call of a library. In the order of this thread's stream of
// its current device.
void run_on_current_stream(const Task& task);

}  // namespace megalith::pretend
