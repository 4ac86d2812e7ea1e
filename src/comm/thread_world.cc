#include "comm/thread_world.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <thread>
#include <tuple>

#include "comm/thread_devices.h"
#include "comm/thread_group.h"
#include "comm/thread_hub.h"
#include "core/error.h"
#include "device/threads.h"

namespace megalith {
namespace {

class Meetings {
 public:
  std::shared_ptr<ThreadMeeting> find(const ThreadHub::Lock&, const std::string& axis, const std::vector<int>& ranks,
                                      int rank) {
    const int created_before = num_created_[{axis, ranks, rank}]++;
    std::shared_ptr<ThreadMeeting>& meeting = meetings_[{axis, ranks, created_before}];
    if (!meeting) meeting = std::make_shared<ThreadMeeting>();
    return meeting;
  }

 private:
  // Repeated requests make new groups, on all ranks.
  using Key = std::tuple<std::string, std::vector<int>, int>;
  std::map<Key, std::shared_ptr<ThreadMeeting>> meetings_;
  std::map<Key, int> num_created_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, ThreadWorldSettings settings) : size_(size), settings_(settings) {
  MEGALITH_CHECK(size >= 1, "a world of {} ranks", size);
}

void ThreadWorld::run(const std::function<void(int, const GroupFactory&)>& body) const {
  const SingleThreadedScope one_thread_a_rank;
  const auto hub = std::make_shared<ThreadHub>(size_, settings_);
  Meetings meetings;

  const auto run_rank = [&](int rank) {
    const GroupFactory factory = [&, rank](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
      const auto self = std::find(ranks.begin(), ranks.end(), rank);
      MEGALITH_CHECK(self != ranks.end(), "rank {} asks for group {} of ranks {}", rank, axis, fmt::join(ranks, ", "));
      const int position = static_cast<int>(self - ranks.begin());
      std::shared_ptr<ThreadMeeting> meeting;
      {
        const ThreadHub::Lock lock = hub->lock();
        meeting = meetings.find(lock, axis, ranks, rank);
      }
      return std::make_shared<ThreadGroup>(std::move(ranks), position, axis, hub, std::move(meeting));
    };
    try {
      const c10::DeviceGuard guard(settings_.devices == nullptr ? at::kCPU : settings_.devices->device_of(rank));
      body(rank, factory);
    } catch (...) {
      hub->fail(rank, std::current_exception());
    }
    hub->finish(rank);
  };

  std::vector<std::thread> threads;
  for (int rank = 0; rank < size_; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr failure = hub->failure()) std::rethrow_exception(failure);
}

void ThreadWorld::run(const Mesh& mesh, const std::function<void(Groups&)>& body) const {
  MEGALITH_CHECK(mesh.world_size() == size_, "a mesh of {} ranks in a world of {}", mesh.world_size(), size_);
  run([&](int rank, const GroupFactory& factory) {
    Groups groups(mesh, rank, factory);
    body(groups);
  });
}

}  // namespace megalith
