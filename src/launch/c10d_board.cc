// The watchdogs' board (watchdog.h) in c10d's store.
#include "launch/c10d_shared.h"

namespace megalith {
namespace {

class C10dBoard : public SharedBoard {
 public:
  explicit C10dBoard(StorePointer store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  std::string set_if_absent(const std::string& key, const std::string& value) override {
    const std::vector<uint8_t> found = store_->compareSet(key, {}, std::vector<uint8_t>(value.begin(), value.end()));
    return {found.begin(), found.end()};
  }

  std::optional<std::string> find(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    const std::vector<uint8_t> found = store_->get(key);
    return std::string(found.begin(), found.end());
  }

 private:
  StorePointer store_;
};

}  // namespace

std::shared_ptr<SharedBoard> open_board(c10d::Store& store) { return std::make_shared<C10dBoard>(store.clone()); }

}  // namespace megalith
