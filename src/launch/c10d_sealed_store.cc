// A store that needs its secret; see store_secret.h.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/sha256.h"
#include "launch/c10d_shared.h"

namespace megalith {
namespace {

using Bytes = std::vector<uint8_t>;

class SealedStore : public c10d::Store {
 public:
  SealedStore(StorePointer store, std::string secret) : store_(std::move(store)), secret_(std::move(secret)) {}

  StorePointer clone() override { return c10::make_intrusive<SealedStore>(store_->clone(), secret_); }

  void set(const std::string& key, const Bytes& value) override { store_->set(name_of(key), seal(key, value)); }
  Bytes get(const std::string& key) override { return open(key, store_->get(name_of(key))); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& value) override {
    const Bytes old = expected.empty() ? expected : seal(key, expected);
    const Bytes found = store_->compareSet(name_of(key), old, seal(key, value));
    return found.empty() ? found : open(key, found);
  }
  // The server increments counters: no seal.
  int64_t add(const std::string& key, int64_t value) override { return store_->add(name_of(key), value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(name_of(key)); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(names_of(keys)); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(names_of(keys)); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    store_->wait(names_of(keys), timeout);
  }
  const Milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const Milliseconds& timeout) override { store_->setTimeout(timeout); }

 private:
  static constexpr size_t kSealLength = 64;

  std::string name_of(const std::string& key) const { return hmac_sha256(secret_, "key " + key); }
  std::vector<std::string> names_of(const std::vector<std::string>& keys) const {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back(name_of(key));
    return names;
  }
  Bytes seal(const std::string& key, const Bytes& value) const {
    std::string text = "value " + key;
    text += '\0';
    text.append(value.begin(), value.end());
    const std::string seal = hmac_sha256(secret_, text);
    Bytes sealed(seal.begin(), seal.end());
    sealed.insert(sealed.end(), value.begin(), value.end());
    return sealed;
  }
  Bytes open(const std::string& key, const Bytes& sealed) const {
    const auto begin = sealed.begin() + static_cast<std::ptrdiff_t>(std::min(sealed.size(), kSealLength));
    Bytes value(begin, sealed.end());
    if (seal(key, value) == sealed) return value;
    throw UserError("a process without the run's secret (store_secret_file) has written into the store of the ranks",
                    "see who else uses this machine, and start the run with another MASTER_PORT");
  }

  StorePointer store_;
  std::string secret_;
};

}  // namespace

StorePointer seal_store(StorePointer store, const std::string& secret) {
  if (secret.empty()) return store;
  return c10::make_intrusive<SealedStore>(std::move(store), secret);
}

}  // namespace megalith
