// The hub's HTTP interface; see hub_client.h.
#include "core/hub_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/option_value.h"
#include "core/sha256.h"
#include "core/strings.h"
#include "core/system_call.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int kMostListAttempts = 3;
constexpr int kMostFruitlessAttempts = 5;
constexpr size_t kMostListBytes = size_t{256} << 20;
constexpr int64_t kLongestPause_s = 60;
constexpr int64_t kMostFileBytes = int64_t{1} << 50;

bool is_transient_status(int status) { return status == 408 || status == 429 || status >= 500; }

// Between attempts: doubles, or what the hub asks for.
std::chrono::seconds pause_before(int attempt, const HttpResponse* response) {
  int64_t seconds = int64_t{1} << std::min(attempt, 4);
  if (response != nullptr) {
    seconds = parse_integer(response->header("retry-after")).value_or(seconds);
  }
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 1, kLongestPause_s));
}

void sleep_unless(const std::atomic<bool>& stop, std::chrono::seconds pause) {
  const auto end = std::chrono::steady_clock::now() + pause;
  while (!stop && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

// `"abc"`, `W/"abc"` → abc
std::string plain_etag(std::string_view tag) {
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') tag = tag.substr(1, tag.size() - 2);
  return std::string(tag);
}

// A file that arrives in pieces, perhaps over several runs, with its hash. The bytes that are there are read once.
class PartialFile {
 public:
  PartialFile(fs::path path, const HubFile& file) : path_(std::move(path)), file_(file) {
    fd_ = retry_interrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (fd_ < 0) fail("open");
    try {
      require_regular_file(fd_, path_);
    } catch (...) {
      ::close(fd_);  // no destructor runs for an object whose constructor throws
      throw;
    }
    begin_hash();
    std::vector<std::byte> buffer(size_t{1} << 20);
    for (;;) {
      const ssize_t count = retry_interrupted([&] { return ::read(fd_, buffer.data(), buffer.size()); });
      if (count == 0) break;
      if (count < 0) fail("read");
      count_in(std::span(buffer).first(static_cast<size_t>(count)));
    }
    if (size_ > file_.size) restart();
  }
  ~PartialFile() {
    if (fd_ >= 0) close_descriptor(fd_);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int64_t size() const { return size_; }
  bool is_whole() const { return size_ == file_.size; }

  void append(std::span<const std::byte> bytes) {
    for (std::span<const std::byte> left = bytes; !left.empty();) {
      const ssize_t count = retry_interrupted([&] { return ::write(fd_, left.data(), left.size()); });
      if (count < 0) fail("write");
      left = left.subspan(static_cast<size_t>(count));
    }
    count_in(bytes);
  }

  void restart() {
    if (retry_interrupted([&] { return ::ftruncate(fd_, 0); }) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) fail("truncate");
    begin_hash();
  }

  // The hash of what is there; to be asked once, or after restart().
  std::string hash() { return file_.hash.size() == 64 ? sha256_.hex() : sha1_.hex(); }
  bool has_hash() const { return is_hex_digits(file_.hash, 64) || is_hex_digits(file_.hash, 40); }

  void publish(const fs::path& target) {
    if (retry_interrupted([&] { return ::fsync(fd_); }) != 0) fail("flush");
    if (retry_interrupted([&] { return ::rename(path_.c_str(), target.c_str()); }) != 0) fail("rename");
    sync_path(target.parent_path());
  }

 private:
  void begin_hash() {
    size_ = 0;
    sha256_ = Sha256();
    sha1_ = Sha1();
    if (file_.hash.size() == 40) sha1_.update(fmt::format("blob {}{}", file_.size, '\0'));  // as git names a file
  }
  void count_in(std::span<const std::byte> bytes) {
    size_ += static_cast<int64_t>(bytes.size());
    if (file_.hash.size() == 64) sha256_.update(bytes);
    if (file_.hash.size() == 40) sha1_.update(bytes);
  }
  [[noreturn]] void fail(std::string_view verb) const {
    throw UserError(fmt::format("cannot {} {}: {}", verb, path_.string(), system_error_text(errno)),
                    "is the cache writable, with room left? HF_HUB_CACHE names another folder");
  }

  fs::path path_;
  const HubFile& file_;
  int fd_ = -1;
  int64_t size_ = 0;
  Sha256 sha256_;
  Sha1 sha1_;
};

// The position in "bytes 100-199/200"; nothing for what is not written so.
std::optional<int64_t> first_byte_of_range(const std::string& header) {
  if (!header.starts_with("bytes ")) return std::nullopt;
  return parse_integer(header.substr(6, header.find('-') - 6));
}

HubFile read_sibling(const Json& sibling, const std::string& where) {
  HubFile file;
  file.name = json_get<std::string>(sibling, "rfilename", where);
  file.size = json_get_or<int64_t>(sibling, "size", -1, where);
  file.hash = json_get_or<std::string>(sibling, "blobId", "", where);
  if (const Json* lfs = find_member(sibling, "lfs", where)) {
    file.size = json_get_or<int64_t>(*lfs, "size", file.size, where);
    // Without it the blobId would be the pointer's, not the file's.
    file.hash = json_get_or<std::string>(*lfs, "sha256", "", where);
  }
  if (!is_hex_digits(file.hash, 64) && !is_hex_digits(file.hash, 40)) file.hash.clear();
  if (file.size > kMostFileBytes) file.size = -1;
  return file;
}

}  // namespace

std::string offline_remedy(const HubSettings& settings, const HubName& name) {
  const std::string folder = hub_repo_folder(settings, name).string();
  return fmt::format(
      "where there is a network, run 'megalith fetch {}{}', and copy {} from its cache to {}\n  "
      "or put the files into any folder, and name its path",
      name.text(), name.type == HubRepoType::kDataset ? " --repo_type dataset" : "",
      hub_repo_folder(settings, name).filename().string(), folder);
}

HubClient::HubClient(const HubSettings& settings, HubName name, std::string what)
    : settings_(settings),
      name_(std::move(name)),
      what_(std::move(what)),
      http_({settings.connect_timeout_s, settings.stall_timeout_s, settings.ca_file}) {}

HttpRequest HubClient::request(std::string url) const {
  HttpRequest request;
  request.url = std::move(url);
  request.secret = settings_.token;
  request.secret_origin = url_origin(settings_.endpoint);
  return request;
}

std::string HubClient::resolve_url(const std::string& commit, const std::string& file) const {
  return fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, name_.page(), commit, percent_encoded(file, "/"));
}

std::string HubClient::without_token(std::string text) const {
  if (settings_.token.empty()) return text;
  for (size_t at = text.find(settings_.token); at != std::string::npos; at = text.find(settings_.token)) {
    text.replace(at, settings_.token.size(), "***");
  }
  return text;
}

void HubClient::give_up(const std::string& reason) const {
  const bool is_mistrust = reason.find("certificate") != std::string::npos;
  throw UserError(fmt::format("{}: {}", what_, without_token(reason)),
                  fmt::format("{}{}",
                              is_mistrust ? "if a proxy of yours signs connections, name its certificates with "
                                            "SSL_CERT_FILE (REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE come before it)\n  "
                                          : "",
                              offline_remedy(settings_, name_)));
}

void HubClient::refuse(const HttpResponse& response, const std::string& file) const {
  const std::string hub = settings_.shown_endpoint(), code = response.origin_header("x-error-code");
  const std::string words = without_token(response.origin_header("x-error-message"));
  const std::string said = fmt::format("{}{}{}", response.status, words.empty() ? "" : ", ", words);
  const std::string page = fmt::format("{}/{}", hub, name_.page());
  const int status = response.status;
  if (response.origin() != url_origin(settings_.endpoint)) {
    throw UserError(fmt::format("{}: the store of {} answers {}", what_, file, said), "try again in a few minutes");
  }
  if (status == 401 || status == 403) {
    const std::string sent = settings_.token.empty() ? std::string("no token was sent")
                                                     : fmt::format("the token of {} was sent", settings_.token_source);
    throw UserError(
        fmt::format("{}: {} refuses the {} {} ({}); {}", what_, hub, name_.type_word(), name_.repo, said, sent),
        fmt::format("if it asks for a licence to be accepted, do so on {}\n  "
                    "then put a token of that account (made on {}/settings/tokens) into the variable HF_TOKEN\n  "
                    "the hub answers the same for a name that does not exist: is it spelled right?",
                    page, hub));
  }
  if (status == 404 && code == "RevisionNotFound") {
    throw UserError(
        fmt::format("{}: the {} {} has no revision '{}'", what_, name_.type_word(), name_.repo, name_.revision),
        fmt::format("give a branch, tag or commit that {}/commits/main shows", page));
  }
  if (status == 404 && !file.empty()) {
    throw UserError(fmt::format("{}: the {} {} has no file {}", what_, name_.type_word(), name_.repo, file),
                    fmt::format("its files: {}/tree/main", page));
  }
  if (status == 404) {
    const char* other = name_.type == HubRepoType::kModel ? "data sets need --repo_type dataset" : "is it a model?";
    throw UserError(fmt::format("{}: {} has no {} {}", what_, hub, name_.type_word(), name_.repo),
                    fmt::format("is it spelled right? In 'megalith fetch', {}", other));
  }
  if (status == 429) {
    throw UserError(fmt::format("{}: {} asks for fewer requests ({})", what_, hub, said),
                    "try again in a few minutes; with a token in HF_TOKEN the hub allows more");
  }
  give_up(fmt::format("{} answers {}", hub, said));
}

HttpResponse HubClient::send(const HttpRequest& request, std::string* body, const std::string& file) {
  const std::atomic<bool> never{false};
  for (int attempt = 0;; ++attempt) {
    const bool is_last = attempt + 1 == kMostListAttempts;
    try {
      HttpClient::Sink collect;
      if (body != nullptr) {
        body->clear();
        collect = [&](const HttpResponse&, std::span<const std::byte> bytes) {
          body->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          return body->size() <= kMostListBytes;
        };
      }
      HttpResponse response = http_.send(request, collect);
      if (response.status < 400) return response;
      if (!is_transient_status(response.status) || is_last) refuse(response, file);
      sleep_unless(never, pause_before(attempt, &response));
    } catch (const HttpError& error) {
      if (!error.is_transient() || is_last) give_up(fmt::format("the hub cannot be reached: {}", error.what()));
      sleep_unless(never, pause_before(attempt, nullptr));
    }
  }
}

HubListing HubClient::list() {
  const std::string url = fmt::format("{}/api/{}s/{}/revision/{}?blobs=true", settings_.endpoint, name_.type_word(),
                                      name_.repo, percent_encoded(name_.revision));
  std::string body;
  const HttpResponse response = send(request(url), &body, "");
  const std::string where = fmt::format("{}: the answer of {}", what_, settings_.shown_endpoint());
  if (response.status != 200 || body.size() > kMostListBytes) give_up(fmt::format("{} has no list of files", where));
  const Json answer = parse_json(body, where);
  HubListing listing;
  listing.commit = json_get<std::string>(answer, "sha", where);
  if (!is_commit(listing.commit)) give_up(fmt::format("{} names no commit", where));
  const Json& siblings = get_member(answer, "siblings", where);
  if (!siblings.is_array()) give_up(fmt::format("{}: siblings is no list", where));
  for (const Json& sibling : siblings) {
    HubFile file = read_sibling(sibling, where);
    // A name that leads out of the snapshot would be written there.
    if (!is_safe_hub_file(file.name)) give_up(fmt::format("{} has a file with an unsafe name", where));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

void HubClient::describe(const std::string& commit, HubFile& file) {
  if (file.size >= 0 && !file.hash.empty()) return;
  HttpRequest asked = request(resolve_url(commit, file.name));
  asked.wants_body = false;
  const HttpResponse response = send(asked, nullptr, file.name);
  std::string tag = response.origin_header("x-linked-etag"), size = response.origin_header("x-linked-size");
  if (tag.empty()) tag = response.origin_header("etag");
  if (size.empty() && response.status < 300) size = response.origin_header("content-length");
  file.hash = plain_etag(tag);
  file.size = parse_integer(size).value_or(-1);
  if (file.size > kMostFileBytes) file.size = -1;
  const bool is_name = !file.hash.empty() && file.hash.size() <= 200 && is_safe_hub_file(file.hash) &&
                       file.hash.find('/') == std::string::npos && file.hash.front() != '.';
  if (file.size < 0 || !is_name) {
    give_up(fmt::format("{} does not state size and hash of {}", settings_.shown_endpoint(), file.name));
  }
}

void HubClient::download(const std::string& commit, const HubFile& file, const fs::path& blob,
                         const std::function<void(int64_t)>& on_bytes, const std::atomic<bool>& stop) {
  const fs::path incomplete = fmt::format("{}.incomplete", blob.string());
  PartialFile part(incomplete, file);
  int64_t received = 0;
  const auto restart = [&] {
    on_bytes(-std::exchange(received, 0));
    part.restart();
  };
  int fruitless = 0;
  bool was_wrong = false;
  while (!stop) {
    std::string reason;
    std::optional<HttpResponse> answer;
    const int64_t before = part.size();
    bool is_too_long = false;
    if (!part.is_whole()) {
      HttpRequest asked = request(resolve_url(commit, file.name));
      asked.first_byte = before;
      bool is_first = true;
      try {
        answer = http_.send(asked, [&](const HttpResponse& response, std::span<const std::byte> bytes) {
          if (std::exchange(is_first, false)) {
            const auto begin = first_byte_of_range(response.header("content-range"));
            // A server that knows no ranges, or answers another one, begins anew.
            if (response.status == 200 && part.size() > 0) restart();
            if (response.status == 206 && begin != part.size()) {
              restart();
              return false;
            }
          }
          is_too_long = part.size() + static_cast<int64_t>(bytes.size()) > file.size;
          if (is_too_long || stop) return false;
          part.append(bytes);
          received += static_cast<int64_t>(bytes.size());
          on_bytes(static_cast<int64_t>(bytes.size()));
          return true;
        });
        if (answer->status == 416) {
          restart();
          reason = "the store does not know the position to go on from";
        } else if (answer->status >= 300 && !is_transient_status(answer->status)) {
          refuse(*answer, file.name);
        } else if (answer->status >= 300) {
          reason = fmt::format("the answer was {}", answer->status);
        } else {
          reason = "the answer ended early";
        }
      } catch (const HttpError& error) {
        reason = error.what();
        if (!error.is_transient()) give_up(fmt::format("{}: {}", file.name, reason));
      }
    }
    if (stop) return;
    if (part.is_whole() && !is_too_long) {
      const std::string hash = part.has_hash() ? part.hash() : file.hash;
      if (hash == file.hash) return part.publish(blob);
      reason = fmt::format("{} {}, the hub states {}", hash.size() == 64 ? "SHA-256" : "SHA-1", hash, file.hash);
      is_too_long = true;
    }
    if (is_too_long) {
      // What was there before this run may have been wrong; a second time it is the store.
      if (reason.find("the hub states") == std::string::npos) reason = fmt::format("more than {} bytes", file.size);
      restart();
      if (std::exchange(was_wrong, true)) {
        fs::remove(incomplete);
        throw UserError(
            fmt::format("{}: {} arrived twice with other content than the hub states ({})", what_, file.name, reason),
            "try again later or from another network; nothing wrong was kept");
      }
      continue;
    }
    fruitless = part.size() > before ? 0 : fruitless + 1;
    if (fruitless == kMostFruitlessAttempts) {
      throw UserError(fmt::format("{}: {} stopped at {} of {} bytes: {}", what_, file.name, part.size(), file.size,
                                  without_token(reason)),
                      fmt::format("run the same command again: it goes on from there ({})", incomplete.string()));
    }
    sleep_unless(stop, pause_before(fruitless, answer ? &*answer : nullptr));
  }
}

}  // namespace megalith
