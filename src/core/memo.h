// Values that several threads share, each made once.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace megalith {

template <typename Key, typename Value>
class Memo {
 public:
  // make()'s value, of the first call with this key; others wait for it. If make() throws, the next call tries again.
  // References stay valid as long as the memo.
  template <typename Make>
  const Value& of(const Key& key, const Make& make) {
    Slot* slot = nullptr;
    {
      const std::lock_guard lock(mutex_);
      slot = &slots_[key];
    }
    std::call_once(slot->once, [&] { slot->value.emplace(make()); });
    return *slot->value;
  }

 private:
  struct Slot {
    std::once_flag once;
    std::optional<Value> value;
  };
  std::mutex mutex_;
  std::map<Key, Slot> slots_;
};

}  // namespace megalith
