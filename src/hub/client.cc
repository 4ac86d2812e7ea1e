#include "hub/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/sha256.h"
#include "core/strings.h"
#include "core/system_call.h"
#include "hub/urls.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr int kMostAnswerTries = 3;
constexpr int kMostFileTries = 5;  // without progress
// Least progress of a try; bounds requests to a store that cuts answers short.
constexpr int64_t kLeastProgressShare = 1024, kLeastProgressBytes = int64_t{64} << 10;
constexpr int64_t kLeastAnswerBytesPerS = int64_t{64} << 10;
constexpr int64_t kMostFileBytes = int64_t{1} << 50;

bool is_transient_status(int status) { return status == 408 || status == 429 || status >= 500; }

// `"abc"`, `W/"abc"` → abc
std::string plain_etag(std::string_view tag) {
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') tag = tag.substr(1, tag.size() - 2);
  return std::string(tag);
}

// A file that arrives in pieces, perhaps over several runs, and its hash. Reads existing bytes once.
class PartialFile {
 public:
  PartialFile(fs::path path, const HubFile& file) : path_(std::move(path)), file_(file) {
    fd_ = retry_interrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (fd_ < 0) fail("open");
    try {
      require_regular_file(fd_, path_);
    } catch (...) {
      ::close(fd_);  // a throwing constructor runs no destructor
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

  // Ends the hash: once, or again after restart().
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
    if (file_.hash.size() == 40) sha1_.update(fmt::format("blob {}{}", file_.size, '\0'));  // git's header
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

// "bytes 100-199/200"; null if malformed.
std::optional<int64_t> first_byte_of_range(const std::string& header) {
  if (!header.starts_with("bytes ")) return std::nullopt;
  return parse_integer(header.substr(6, header.find('-') - 6));
}

// The whole file's, if given.
std::optional<int64_t> announced_size(const HttpResponse& response) {
  if (response.status == 200) return parse_integer(response.header("content-length"));
  const std::string range = response.header("content-range");
  const size_t slash = range.find('/');
  return slash == std::string::npos ? std::nullopt : parse_integer(range.substr(slash + 1));
}

HubFile read_sibling(const Json& sibling, const std::string& where) {
  HubFile file;
  file.name = json_get<std::string>(sibling, "rfilename", where);
  file.size = json_get_or<int64_t>(sibling, "size", -1, where);
  file.hash = json_get_or<std::string>(sibling, "blobId", "", where);
  if (const Json* lfs = find_member(sibling, "lfs", where)) {
    file.size = json_get_or<int64_t>(*lfs, "size", file.size, where);
    // blobId is the pointer's.
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

HubClient::HubClient(const HubSettings& settings, HubName name, std::string what, Logger& log)
    : settings_(settings),
      name_(std::move(name)),
      what_(std::move(what)),
      log_(log),
      http_({.connect_timeout = settings.patience.connect_timeout,
             .stall_timeout = settings.patience.stall_timeout,
             .ca_file = settings.ca_file}) {}

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
  const std::string message = fmt::format("{}: {}", what_, without_token(reason));
  const std::string remedy = offline_remedy(settings_, name_);
  if (reason.find("certificate") == std::string::npos) throw HubError(message, remedy);
  throw UserError(message,
                  fmt::format("if a proxy of yours signs connections, name its certificates with SSL_CERT_FILE "
                              "(REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE come before it)\n  {}",
                              remedy));
}

void HubClient::refuse(const HttpResponse& response, const std::string& file, const std::string& end) const {
  const std::string hub = settings_.shown_endpoint(), code = response.origin_header("x-error-code");
  const std::string words = without_token(response.origin_header("x-error-message"));
  const std::string said =
      fmt::format("{}{}{}{}{}", response.status, words.empty() ? "" : ", ", words, end.empty() ? "" : "; ", end);
  const std::string page = fmt::format("{}/{}", hub, name_.page());
  const int status = response.status;
  if (response.origin() != url_origin(settings_.endpoint)) {
    throw HubError(fmt::format("{}: the store of {} answers {}", what_, file, said), "try again in a few minutes");
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
    throw HubError(fmt::format("{}: {} asks for fewer requests ({})", what_, hub, said),
                   "try again in a few minutes; with a token in HF_TOKEN the hub allows more");
  }
  give_up(fmt::format("{} answers {}", hub, said));
}

HttpResponse HubClient::send(HttpRequest request, std::string* body, const std::string& file) {
  const std::atomic<bool> never{false};
  HubRetries retries(settings_.patience, file.empty() ? what_ : fmt::format("{}: {}", what_, file), kMostAnswerTries,
                     log_);
  Stopwatch watch;
  const auto is_slow = [&] {
    const int64_t seconds = body == nullptr ? 0 : std::ssize(*body) / kLeastAnswerBytesPerS;
    return watch.elapsed_ms() > static_cast<double>(settings_.patience.answer.count() + seconds * 1000);
  };
  request.should_stop = [&] { return retries.is_used_up() || is_slow(); };
  for (;;) {
    watch.restart();
    std::string reason;
    std::optional<HttpResponse> response;
    try {
      HttpClient::Sink collect;
      if (body != nullptr) {
        body->clear();
        collect = [&](const HttpResponse&, std::span<const std::byte> bytes) {
          body->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          return body->size() <= settings_.patience.most_list_bytes;
        };
      }
      response = http_.send(request, collect);
      if (response->status < 400) return std::move(*response);
      if (!is_transient_status(response->status)) refuse(*response, file);
      reason = fmt::format("{} answers {}", settings_.shown_endpoint(), response->status);
    } catch (const HttpError& error) {
      reason = without_token(error.what());
      if (!error.is_transient()) give_up(fmt::format("the hub cannot be reached: {}", reason));
      // Another try would be as slow, and trickles could go on for hours.
      if (is_slow()) {
        give_up(fmt::format("{} after {}, {} of it; fewer than {} a second are no answer", reason,
                            format_duration(watch.elapsed_s()), format_bytes(body == nullptr ? 0 : std::ssize(*body)),
                            format_bytes(kLeastAnswerBytesPerS)));
      }
    }
    const std::string end = retries.pause_or_end(reason, response ? &*response : nullptr, never);
    if (end.empty()) continue;
    if (response) refuse(*response, file, end);
    give_up(fmt::format("the hub cannot be reached: {} ({})", reason, end));
  }
}

HubListing HubClient::list() {
  const std::string url = fmt::format("{}/api/{}s/{}/revision/{}?blobs=true", settings_.endpoint, name_.type_word(),
                                      name_.repo, percent_encoded(name_.revision));
  std::string body;
  const HttpResponse response = send(request(url), &body, "");
  const std::string where = fmt::format("{}: the answer of {}", what_, settings_.shown_endpoint());
  if (body.size() > settings_.patience.most_list_bytes) {
    give_up(fmt::format("{} is longer than {}, which no list of files is", where,
                        format_bytes(static_cast<int64_t>(settings_.patience.most_list_bytes))));
  }
  if (response.status != 200) give_up(fmt::format("{} is {}, not a list of files", where, response.status));
  try {
    return read_listing(body, where);
  } catch (const UserError& error) {  // the hub's fault, not the user's
    give_up(error.message());
  }
}

HubListing HubClient::read_listing(const std::string& body, const std::string& where) const {
  const Json answer = parse_json(body, where);
  HubListing listing;
  listing.commit = json_get<std::string>(answer, "sha", where);
  if (!is_commit(listing.commit)) give_up(fmt::format("{} names no commit", where));
  const Json& siblings = get_member(answer, "siblings", where);
  if (!siblings.is_array()) give_up(fmt::format("{}: siblings is no list", where));
  for (const Json& sibling : siblings) {
    HubFile file = read_sibling(sibling, where);
    // Names must not lead out of the snapshot.
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

// All tries of a file.
struct HubClient::FileTransfer {
  FileTransfer(const HubFile& listed, const fs::path& path, HubRetries& patience,
               const std::function<void(int64_t)>& progress, const std::atomic<bool>& end)
      : file(listed), part(path, listed), retries(patience), on_bytes(progress), stop(end) {
    set_next_mark();
  }

  void append(std::span<const std::byte> bytes) {
    part.append(bytes);
    received += static_cast<int64_t>(bytes.size());
    on_bytes(static_cast<int64_t>(bytes.size()));
    retries.note_arrival();
    // Refetched bytes are no progress.
    if (part.size() < next_mark) return;
    retries.note_progress();
    set_next_mark();
  }

  void restart() {
    on_bytes(-std::exchange(received, 0));
    part.restart();
  }

  void set_next_mark() {
    const int64_t step = std::max(file.size / kLeastProgressShare, kLeastProgressBytes);
    next_mark = std::min(part.size() + step, file.size);
  }

  const HubFile& file;
  std::string url;
  PartialFile part;
  HubRetries& retries;
  const std::function<void(int64_t)>& on_bytes;
  const std::atomic<bool>& stop;
  int64_t received = 0, next_mark = 0;
};

struct HubClient::FileTry {
  std::string reason;     // why it is incomplete
  bool is_wrong = false;  // the bytes are not the file that the hub lists
  std::optional<HttpResponse> answer;
};

HubClient::FileTry HubClient::try_file(FileTransfer& transfer) {
  const HubFile& file = transfer.file;
  PartialFile& part = transfer.part;
  FileTry result;
  const auto set_wrong_size = [&](const std::string& found) {
    result.reason = fmt::format("{}, the hub lists {}", found, file.size);
    result.is_wrong = true;
    return false;
  };
  HttpRequest asked = request(transfer.url);
  asked.first_byte = part.size();
  asked.should_stop = [&] { return transfer.stop || transfer.retries.is_used_up(); };
  bool is_first = true;
  try {
    result.answer = http_.send(asked, [&](const HttpResponse& response, std::span<const std::byte> bytes) {
      if (std::exchange(is_first, false)) {
        const std::optional<int64_t> size = announced_size(response);
        if (size && *size != file.size) return set_wrong_size(fmt::format("{} bytes are announced", *size));
        const auto begin = first_byte_of_range(response.header("content-range"));
        // The server ignores ranges, or answers another one.
        if (response.status == 200 && part.size() > 0) transfer.restart();
        if (response.status == 206 && begin != part.size()) {
          transfer.restart();
          result.reason = "the answer is another part of the file than was asked for";
          return false;
        }
      }
      const int64_t size = part.size() + static_cast<int64_t>(bytes.size());
      if (size > file.size) return set_wrong_size(fmt::format("more than {} bytes arrived", file.size));
      transfer.append(bytes);
      return true;
    });
  } catch (const HttpError& error) {
    result.reason = without_token(error.what());
    if (!error.is_transient()) give_up(fmt::format("{}: {}", file.name, result.reason));
    return result;
  }
  const int status = result.answer->status;
  if (status == 416) {
    transfer.restart();
    result.reason = "the store does not know the position to go on from (416)";
  } else if (status >= 300 && !is_transient_status(status)) {
    refuse(*result.answer, file.name);
  } else if (status >= 300) {
    result.reason = fmt::format("the answer was {}", status);
  } else if (result.reason.empty()) {
    result.reason = "the answer ended early";
  }
  return result;
}

void HubClient::download(const std::string& commit, const HubFile& file, const fs::path& blob,
                         const std::function<void(int64_t)>& on_bytes, const std::atomic<bool>& stop) {
  const fs::path incomplete = fmt::format("{}.incomplete", blob.string());
  const std::string what = fmt::format("{}: {}", what_, file.name);
  HubRetries retries(settings_.patience, what, kMostFileTries, log_);
  FileTransfer transfer(file, incomplete, retries, on_bytes, stop);
  PartialFile& part = transfer.part;
  transfer.url = resolve_url(commit, file.name);
  retries.note_progress();  // reading existing bytes took time
  bool was_wrong = false;
  while (!stop) {
    FileTry last;
    if (!part.is_whole()) last = try_file(transfer);
    if (stop) return;
    if (part.is_whole() && !last.is_wrong) {
      const std::string hash = part.has_hash() ? part.hash() : file.hash;
      if (hash == file.hash) return part.publish(blob);
      last.reason = fmt::format("{} {}, the hub states {}", hash.size() == 64 ? "SHA-256" : "SHA-1", hash, file.hash);
      last.is_wrong = true;
    }
    if (last.is_wrong) {
      // Once, bytes of an earlier run may have been wrong; twice, it is the store.
      transfer.restart();
      if (std::exchange(was_wrong, true)) {
        fs::remove(incomplete);
        throw HubError(fmt::format("{} arrived twice with other content than the hub states ({})", what, last.reason),
                       "try again later or from another network; nothing wrong was kept");
      }
      log_.warn("{}: {}; it is fetched anew", what, last.reason);
      continue;
    }
    const std::string end = retries.pause_or_end(last.reason, last.answer ? &*last.answer : nullptr, stop);
    if (end.empty()) continue;
    throw HubError(fmt::format("{} stopped at {} of {} bytes: {} ({})", what, part.size(), file.size, last.reason, end),
                   fmt::format("run the same command again: it goes on from there ({})", incomplete.string()));
  }
}

}  // namespace megalith
