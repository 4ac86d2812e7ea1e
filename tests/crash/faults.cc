// See faults.h.
#include "faults.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

namespace megalith::test {
namespace {

std::atomic<bool> g_is_faulty = false;
std::mutex g_mutex;  // of the rest: writers have threads
Fault g_fault;
int g_next = 0;
std::string g_call;

bool needs_room(std::string_view name) {
  constexpr std::array kNames = {"create", "write",     "writev", "pwrite", "ftruncate",
                                 "fsync",  "fdatasync", "mkdir",  "rename"};
  for (const std::string_view one : kNames) {
    if (one == name) return true;
  }
  return false;
}

}  // namespace

Faults::Faults(Fault fault) {
  const std::lock_guard lock(g_mutex);
  g_fault = std::move(fault);
  g_next = 0;
  g_call.clear();
  g_is_faulty = true;
}

Faults::~Faults() { g_is_faulty = false; }

bool Faults::has_struck() const {
  const std::lock_guard lock(g_mutex);
  return !g_call.empty();
}

std::string Faults::call() const {
  const std::lock_guard lock(g_mutex);
  return g_call;
}

bool is_faulty() { return g_is_faulty; }

bool faulty_disk_can_exchange() {
  const std::lock_guard lock(g_mutex);
  return g_fault.can_exchange;
}

bool strike(std::string_view name, const std::filesystem::path& path) {
  const std::lock_guard lock(g_mutex);
  const std::string text = path.string(), root = g_fault.root.string();
  if (!text.starts_with(root + "/") && text != root) return false;
  const int number = g_next++;
  if (number != g_fault.number && !(g_fault.is_lasting && number > g_fault.number && needs_room(name))) return false;
  if (g_call.empty()) g_call = std::string(name) + " " + path.lexically_relative(g_fault.root).string();
  errno = g_fault.error_number;
  return true;
}

}  // namespace megalith::test
