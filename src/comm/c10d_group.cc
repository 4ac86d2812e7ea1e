// See c10d_group.h. The only file with most of c10d's headers, which cost ten seconds.
#ifdef MEGALITH_GLOO
#define USE_C10D_GLOO 1
#endif

#include "comm/c10d_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef MEGALITH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "comm/c10d_backend.h"
#include "comm/single_group.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

using Milliseconds = std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

Milliseconds milliseconds_of(double seconds) { return Milliseconds(static_cast<int64_t>(seconds * 1e3)); }

// The first line of what c10d says, without its source files and call stacks.
std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) {
    const size_t close = text.find("] ");
    if (close != std::string::npos) text.erase(0, close + 2);
  }
  return std::string(trim(text));
}

// c10d prints a call stack when the store's server is gone. From here on the run only ends, and our messages say why.
void silence_warnings() { FLAGS_caffe2_log_level = c10::GLOG_ERROR; }

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Most of a message that everybody will print; a stack of causes needs no more.
constexpr size_t kLongestReport = 2000;
// How long a rank whose collective broke waits for word from the others. They notice within milliseconds when a
// connection closes, unless they are busy computing.
constexpr auto kReportPatience = std::chrono::seconds(2);

}  // namespace

// What the groups of one world share.
struct C10dWorld::Shared {
  Launch launch;
  c10::Device device = c10::kCPU;
  Milliseconds timeout{0};
  StorePointer store;
#ifdef MEGALITH_GLOO
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options;
#endif

  void meet();
  void check_world_size();
  BackendPointer make_backend(const std::string& key, int rank, int size);
  std::string explain(const std::vector<int>& ranks) noexcept;
  bool has(const std::string& key) { return store->check({key}); }
  std::string timeout_text() const {
    return fmt::format("{:g} minutes (distributed_timeout_minutes)", static_cast<double>(timeout.count()) / 6e4);
  }
};

namespace {

// One collective, or the transfers of one batch.
class C10dState : public WorkState {
 public:
  using OnError = std::function<std::string(const std::exception&)>;

  // after  run once by wait(), when the back end is done: on a GPU it joins the current stream
  C10dState(std::vector<C10dWork> works, OnError on_error, std::function<void()> after)
      : works_(std::move(works)), on_error_(std::move(on_error)), after_(std::move(after)) {}

  void wait() override {
    if (!failure_.empty()) throw CommunicationError(failure_);
    try {
      for (const C10dWork& work : works_) work->wait();
    } catch (const std::exception& error) {
      failure_ = on_error_(error);
      throw CommunicationError(failure_);
    }
    works_.clear();
    if (after_) {
      const at::NoGradGuard no_grad;
      std::exchange(after_, nullptr)();
    }
  }

  // Gloo learns of the end of sends and receives only in wait().
  bool is_done() override {
    return std::all_of(works_.begin(), works_.end(), [](const C10dWork& work) { return work->isCompleted(); });
  }

 private:
  std::vector<C10dWork> works_;
  OnError on_error_;
  std::function<void()> after_;
  std::string failure_;
};

c10d::ReduceOp::RedOpType op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:  // Gloo has no average: the sum is divided afterwards
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  throw InternalError("a reduction without a name");
}

// What moves unchanged moves as bytes: Gloo knows few dtypes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.detach().view(-1);
  return flat.scalar_type() == at::kByte ? flat : flat.view(at::kByte);
}

int64_t bytes_per_row(const at::Tensor& tensor) {
  int64_t bytes = static_cast<int64_t>(tensor.element_size());
  for (const int64_t size : tensor.sizes().slice(1)) bytes *= size;
  return bytes;
}

}  // namespace

class C10dGroup : public Group {
 public:
  using World = std::shared_ptr<C10dWorld::Shared>;
  C10dGroup(std::vector<int> ranks, int position, std::string axis, World world, BackendPointer backend);

  at::Device device() const override { return world_->device; }

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override;
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override;
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override;
  State start_all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits, const Record& record) override;
  State start_broadcast(const at::Tensor& tensor, int root, const Record& record) override;
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override;
  State start_barrier(const Record& record) override;

 private:
  State start(const Record& record, const std::function<std::vector<C10dWork>()>& issue,
              std::function<void()> after = {}) const;

  World world_;
  BackendPointer backend_;
  SingleGroup self_;  // what a rank sends to itself: Gloo has no connection for it
};

C10dGroup::C10dGroup(std::vector<int> ranks, int position, std::string axis, World world, BackendPointer backend)
    : Group(std::move(ranks), position, std::move(axis)),
      world_(std::move(world)),
      backend_(std::move(backend)),
      self_(this->axis(), world_->launch.rank) {}

Group::State C10dGroup::start(const Record& record, const std::function<std::vector<C10dWork>()>& issue,
                              std::function<void()> after) const {
  // A Work may outlive its group.
  const auto on_error = [record, ranks = ranks(), world = world_](const std::exception& error) {
    return fmt::format("{} '{}' over {} (ranks {}) failed: {}\n  the back end says: {}", name_of(record->kind),
                       record->label, record->axis, fmt::join(ranks, ", "), world->explain(ranks), reason_of(error));
  };
  try {
    return std::make_shared<C10dState>(issue(), on_error, std::move(after));
  } catch (const std::exception& error) {
    throw CommunicationError(on_error(error));
  }
}

Group::State C10dGroup::start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) {
  if (tensor.numel() == 0) return nullptr;
  const at::Tensor flat = tensor.detach();
  return start(
      record,
      [&]() -> std::vector<C10dWork> {
        std::vector<at::Tensor> tensors = {flat};
        c10d::AllreduceOptions options;
        options.reduceOp = op_of(op);
        return {backend_->allreduce(tensors, options)};
      },
      [flat, op, n = size()] {
        if (op == ReduceOp::kAvg) at::Tensor(flat).div_(n);
      });
}

Group::State C10dGroup::start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) {
  if (out.numel() == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    at::Tensor out_bytes = as_bytes(out), in_bytes = as_bytes(in);
    return {backend_->_allgather_base(out_bytes, in_bytes, {})};
  });
}

Group::State C10dGroup::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                             const Record& record) {
  if (in.numel() == 0) return nullptr;
  const at::Tensor flat = out.detach().view(-1);
  return start(
      record,
      [&]() -> std::vector<C10dWork> {
        at::Tensor out_flat = flat, in_flat = in.detach().view(-1);
        c10d::ReduceScatterOptions options;
        options.reduceOp = op_of(op);
        return {backend_->_reduce_scatter_base(out_flat, in_flat, options)};
      },
      [flat, op, n = size()] {
        if (op == ReduceOp::kAvg) at::Tensor(flat).div_(n);
      });
}

Group::State C10dGroup::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                         const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits,
                                         const Record& record) {
  const int64_t row_bytes = bytes_per_row(in);
  if (row_bytes == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    std::vector<int64_t> out_bytes_of = out_splits, in_bytes_of = in_splits;
    for (int64_t& rows : out_bytes_of) rows *= row_bytes;
    for (int64_t& rows : in_bytes_of) rows *= row_bytes;
    at::Tensor out_bytes = as_bytes(out), in_bytes = as_bytes(in);
    return {backend_->alltoall_base(out_bytes, in_bytes, out_bytes_of, in_bytes_of, {})};
  });
}

Group::State C10dGroup::start_broadcast(const at::Tensor& tensor, int root, const Record& record) {
  if (tensor.numel() == 0) return nullptr;
  return start(record, [&]() -> std::vector<C10dWork> {
    std::vector<at::Tensor> tensors = {as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return {backend_->broadcast(tensors, options)};
  });
}

Group::State C10dGroup::start_send_receive(const std::vector<Transfer>& transfers, const Record& record) {
  std::vector<Transfer> own, others;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank()) {
      own.push_back(transfer);
      own.back().peer = 0;
    } else if (transfer.tensor.numel() > 0) {
      others.push_back(transfer);
    }
  }
  Work to_self = own.empty() ? Work() : self_.send_receive(std::move(own), record->label);
  return start(
      record,
      [&] {
        std::vector<C10dWork> works;
        // NCCL runs transfers one after another unless they are issued as one.
        const bool is_batch = backend_->supportsCoalescing() && !others.empty();
        if (is_batch) backend_->startCoalescing();
        for (const Transfer& transfer : others) {
          std::vector<at::Tensor> tensors = {as_bytes(transfer.tensor)};
          const C10dWork work = transfer.is_send ? backend_->send(tensors, transfer.peer, transfer.tag)
                                                 : backend_->recv(tensors, transfer.peer, transfer.tag);
          if (!is_batch) works.push_back(work);
        }
        if (is_batch) works.push_back(backend_->endCoalescing());
        return works;
      },
      [to_self]() mutable { to_self.wait(); });
}

Group::State C10dGroup::start_barrier(const Record& record) {
  return start(record, [&]() -> std::vector<C10dWork> {
    c10d::BarrierOptions options;
    if (!world_->device.is_cpu()) options.device_ids = {world_->device.index()};
    return {backend_->barrier(options)};
  });
}

void C10dWorld::Shared::meet() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.timeout = timeout;
  const bool is_server = !launch.has_agent_store && launch.rank == 0;
  options.isServer = is_server;
  options.waitWorkers = !launch.has_agent_store;
  if (!launch.has_agent_store) options.numWorkers = static_cast<size_t>(launch.world_size);
  try {
    const StorePointer tcp = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    // The launcher's store outlives the ranks: those of an earlier start must not be met there.
    store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("megalith/{}", launch.restart_count), tcp);
    store->setTimeout(timeout);
  } catch (const std::exception& error) {
    const std::string reason = reason_of(error);
    if (is_server && reason.find("in use") != std::string::npos) {
      throw UserError(
          fmt::format("port {} of this machine, where the ranks are to meet, is in use", launch.master_port),
          "another run may have it: set MASTER_PORT to a free one");
    }
    throw CommunicationError(
        fmt::format("the {} ranks did not meet at {}:{} (MASTER_ADDR, MASTER_PORT) within {}: {}\n  see that all ranks "
                    "were started "
                    "and that the machines reach that address",
                    launch.world_size, launch.master_address, launch.master_port, timeout_text(), reason));
  }
}

// Ranks that were started with different sizes would wait for one another until the time-out.
void C10dWorld::Shared::check_world_size() {
  const std::string own = std::to_string(launch.world_size);
  const std::string first = text_of(store->compareSet("world_size", {}, bytes_of(own)));
  if (first != own) {
    throw UserError(fmt::format("this rank was started in a world of {}, another one in a world of {}", own, first),
                    "start all ranks with the same number of them");
  }
}

BackendPointer C10dWorld::Shared::make_backend(const std::string& key, int rank, int size) {
  const StorePointer own = c10::make_intrusive<c10d::PrefixStore>(key, store);
  if (!device.is_cpu()) return make_nccl_backend(own, rank, size, timeout);
#ifdef MEGALITH_GLOO
  return c10::make_intrusive<c10d::ProcessGroupGloo>(own, rank, size, gloo_options);
#else
  return nullptr;
#endif
}

// Who is at fault when a collective over these ranks broke. Never throws: it is asked in the middle of a failure.
std::string C10dWorld::Shared::explain(const std::vector<int>& ranks) noexcept {
  std::vector<int> silent;
  silence_warnings();
  try {
    // The store answers at once or not at all.
    store->setTimeout(std::chrono::seconds(5));
    store->set(fmt::format("lost_contact/{}", launch.rank), bytes_of("1"));
    const auto patience_ends = std::chrono::steady_clock::now() + kReportPatience;
    silent = ranks;
    while (true) {
      if (has("first_failure")) return text_of(store->get("first_failure"));
      std::erase_if(silent, [&](int rank) { return has(fmt::format("lost_contact/{}", rank)); });
      if (silent.empty() || std::chrono::steady_clock::now() >= patience_ends) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  } catch (const std::exception&) {
    if (launch.has_agent_store) return "a rank is gone, and so is the launcher's store";
    return "rank 0 is gone: it ended without leaving a reason (killed, or out of memory?)";
  }
  if (silent.empty()) return "the ranks lost contact with one another";
  // A rank that waits for a third one notices only later, so several may be silent where one is at fault.
  return fmt::format("{} {} is gone or stuck: no reason was left (killed, or out of memory?)",
                     silent.size() == 1 ? "rank" : "one of the ranks", fmt::join(silent, ", "));
}

C10dWorld::C10dWorld(const Launch& launch, c10::Device device, double timeout_s) : shared_(std::make_shared<Shared>()) {
  MEGALITH_CHECK(launch.world_size > 1, "a world of {} needs no other ranks", launch.world_size);
  shared_->launch = launch;
  shared_->device = device;
  shared_->timeout = milliseconds_of(timeout_s);
#ifndef MEGALITH_GLOO
  if (device.is_cpu()) {
    throw UserError("this program was built without Gloo, so several ranks cannot work together on CPUs",
                    "install libgloo-dev and build again, or start one rank");
  }
#endif
#ifndef MEGALITH_NCCL
  if (!device.is_cpu()) {
    throw UserError("this program was built without NCCL or RCCL, so several ranks cannot work together on GPUs",
                    "build against a CUDA or ROCm torch with nccl.h (pip install nvidia-nccl-cu13), start one rank, or "
                    "use --device cpu");
  }
#endif
  shared_->meet();
  shared_->check_world_size();
#ifdef MEGALITH_GLOO
  if (launch.is_one_machine() && std::getenv("GLOO_SOCKET_IFNAME") == nullptr) {
    // No need for the host name, which in containers often leads nowhere.
    shared_->gloo_options = c10d::ProcessGroupGloo::Options::create(shared_->timeout);
    shared_->gloo_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  } else {
    shared_->gloo_options = c10d::ProcessGroupGloo::Options::create_default(shared_->timeout);
  }
#endif
}

C10dWorld::~C10dWorld() = default;

GroupFactory C10dWorld::factory() {
  return [shared = shared_](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
    const auto own = std::find(ranks.begin(), ranks.end(), shared->launch.rank);
    MEGALITH_CHECK(own != ranks.end(), "rank {} is not in its group {}", shared->launch.rank, axis);
    const int position = static_cast<int>(own - ranks.begin());
    const int size = static_cast<int>(ranks.size());
    BackendPointer backend;
    try {
      // The groups of one axis have no rank in common.
      backend = shared->make_backend(fmt::format("group/{}/{}", axis, ranks.front()), position, size);
    } catch (const std::exception& error) {
      throw CommunicationError(fmt::format("group {} (ranks {}) could not be made: {}\n  {}", axis,
                                           fmt::join(ranks, ", "), shared->explain(ranks), reason_of(error)));
    }
    return std::make_shared<C10dGroup>(std::move(ranks), position, axis, shared, std::move(backend));
  };
}

void C10dWorld::report_failure(std::string_view message) noexcept {
  silence_warnings();
  try {
    shared_->store->setTimeout(std::chrono::seconds(5));
    const std::string text = fmt::format("rank {} failed: {}", shared_->launch.rank, message.substr(0, kLongestReport));
    shared_->store->compareSet("first_failure", {}, bytes_of(text));
  } catch (const std::exception&) {
    // The store is gone, so others have failed before.
  }
}

void C10dWorld::finish() {
  const std::string key = "finished";
  silence_warnings();
  try {
    const int64_t arrived = shared_->store->add(key, 1);
    if (arrived == shared_->launch.world_size) shared_->store->set("all_" + key, bytes_of("1"));
    shared_->store->wait({"all_" + key}, shared_->timeout);
    // Whoever serves the store leaves last.
    if (shared_->launch.rank != 0) {
      shared_->store->add("left", 1);
    } else if (!shared_->launch.has_agent_store) {
      const auto end = std::chrono::steady_clock::now() + kReportPatience;
      while (shared_->store->add("left", 0) + 1 < shared_->launch.world_size &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format("the ranks did not all come to the end of the run: {}\n  {}",
                                         shared_->explain({}), reason_of(error)));
  }
}

}  // namespace megalith
