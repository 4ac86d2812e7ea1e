#include "storage/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/machine_error.h"
#include "core/on_threads.h"
#include "core/sha256.h"
#include "core/strings.h"
#include "hub/http.h"
#include "hub/retry.h"
#include "hub/urls.h"
#include "storage/s3_signature.h"

namespace megalith {
namespace {

constexpr int64_t kPartBytes = int64_t{8} << 20;  // the storage wants 5 MiB, at most 10 000 parts
constexpr int64_t kMostParts = 9000;
constexpr size_t kUploadThreads = 4;
constexpr size_t kMostAnswerBytes = size_t{64} << 20;

std::string unescaped_xml(std::string_view text) {
  constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#34;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}};
  std::string result;
  while (!text.empty()) {
    const auto found = std::ranges::find_if(kEntities, [&](const auto& one) { return text.starts_with(one.first); });
    const bool is_entity = found != std::end(kEntities);
    result += is_entity ? found->second : text.front();
    text.remove_prefix(is_entity ? found->first.size() : 1);
  }
  return result;
}

// Contents of every <name>…</name>, which the answers used here never nest in themselves.
std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name) {
  std::vector<std::string_view> found;
  const std::string open = fmt::format("<{}>", name), close = fmt::format("</{}>", name);
  for (size_t at = text.find(open); at != std::string_view::npos; at = text.find(open, at)) {
    const size_t begin = at + open.size(), end = text.find(close, begin);
    if (end == std::string_view::npos) break;
    found.push_back(text.substr(begin, end - begin));
    at = end;
  }
  return found;
}

std::string xml_value(std::string_view text, std::string_view name) {
  const std::vector<std::string_view> found = xml_elements(text, name);
  return found.empty() ? "" : unescaped_xml(found.front());
}

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

bool may_succeed_later(int status, std::string_view code) {
  return status >= 500 || status == 429 || status == 408 || code == "RequestTimeout" || code == "SlowDown" ||
         code == "OperationAborted";
}

struct S3Answer {
  HttpResponse response;
  std::string body;     // unless a reader took it
  std::string sent_at;  // by this machine's clock
};

}  // namespace

struct ObjectStore::State {
  S3Settings settings;
  S3Url url;
  Logger& log;
  std::mutex mutex;
  std::vector<std::unique_ptr<HttpClient>> idle;  // connections

  // All tries.
  //   reader    takes the body of a success; it is told before each try
  //   may_miss  an answer of 404 is returned
  struct Reader {
    std::function<void(S3Call&)> begin = {};
    std::function<bool(const HttpResponse&, std::span<const std::byte>)> take = {};
    std::function<bool()> is_done = [] { return true; };
    std::function<int64_t()> progress = [] { return int64_t{0}; };
  };
  S3Answer send(const std::string& method, const std::string& key, const std::map<std::string, std::string>& query,
                std::span<const std::byte> body = {}, const Reader* reader = nullptr, bool may_miss = false);

  [[noreturn]] void refuse(const std::string& what, const S3Call& call, const S3Answer& answer) const;
  S3Answer send_once(S3Call call, std::span<const std::byte> body, const std::string& hash, const Reader* reader);
  void put_parts(const std::string& key, const MappedFile& file, int64_t part_bytes, const std::string& upload);
  std::string without_secrets(std::string text) const;
};

std::string ObjectStore::State::without_secrets(std::string text) const {
  for (const std::string* secret : {&settings.secret_key, &settings.session_token, &settings.access_key}) {
    if (secret->empty()) continue;
    for (size_t at = text.find(*secret); at != std::string::npos; at = text.find(*secret)) {
      text.replace(at, secret->size(), "***");
    }
  }
  return text;
}

void ObjectStore::State::refuse(const std::string& what, const S3Call& call, const S3Answer& answer) const {
  const int status = answer.response.status;
  const std::string code = xml_value(answer.body, "Code"), words = xml_value(answer.body, "Message");
  std::string region = answer.response.header("x-amz-bucket-region");
  if (region.empty()) region = xml_value(answer.body, "Region");
  const std::string said = without_secrets(fmt::format("{} {}: {}{}{}{}", shown_url(settings.endpoint), call.method,
                                                       status, code.empty() ? "" : " ", code,
                                                       words.empty() ? "" : ", " + words));
  const bool is_moved = status == 301 || status == 307 || code == "AuthorizationHeaderMalformed";
  if (is_moved || (!region.empty() && region != settings.region && status == 400)) {
    throw UserError(fmt::format("{}: the bucket {} is not in region {}{} ({})", what, url.bucket, settings.region,
                                region.empty() ? "" : fmt::format(" but in {}", region), said),
                    fmt::format("set AWS_REGION={}, and no AWS_ENDPOINT_URL of another region",
                                region.empty() ? "the bucket's" : region));
  }
  if (code == "RequestTimeTooSkewed") {
    throw UserError(fmt::format("{}: this machine's clock is wrong: it says {}, the storage {} ({})", what,
                                answer.sent_at, answer.response.header("date"), said),
                    "set the clock (timedatectl set-ntp true)");
  }
  if (status == 404 && (code == "NoSuchBucket" || call.path == "/" || call.path == "/" + url.bucket)) {
    throw UserError(fmt::format("{}: there is no bucket {} ({})", what, url.bucket, said),
                    "make it first, or correct its name and AWS_ENDPOINT_URL_S3");
  }
  if (status == 404) {
    throw UserError(fmt::format("{}: there is no such object ({})", what, said), "is it spelled right?");
  }
  if (status == 412) {
    throw UserError(fmt::format("{}: the object was replaced while it was being read", what), "start again");
  }
  if (status == 401 || status == 403) {
    throw UserError(fmt::format("{}: refused to the keys of {} ({})", what, settings.credentials_source, said),
                    "give keys that may list, read and write there; a session's keys expire");
  }
  throw UserError(fmt::format("{}: {}", what, said), "see what the storage's documentation says of this answer");
}

S3Answer ObjectStore::State::send_once(S3Call call, std::span<const std::byte> body, const std::string& hash,
                                       const Reader* reader) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char time[32];
  std::strftime(time, sizeof(time), "%Y%m%dT%H%M%SZ", &utc);
  call.headers["x-amz-date"] = time;
  call.headers["x-amz-content-sha256"] = hash;
  if (!settings.session_token.empty()) call.headers["x-amz-security-token"] = settings.session_token;
  HttpRequest request;
  request.url = fmt::format("{}://{}{}{}{}", settings.endpoint.substr(0, settings.endpoint.find(':')), call.host,
                            call.path, call.query.empty() ? "" : "?", encoded_query(call.query));
  request.wants_body = call.method != "HEAD";
  if (request.wants_body) request.method = call.method;
  request.body = body;
  request.wants_error_body = true;
  request.follows_redirects = false;
  request.headers.assign(call.headers.begin(), call.headers.end());
  request.headers.emplace_back("Host", call.host);  // as signed, also with a scheme's own port
  request.headers.emplace_back("Authorization", s3_signature(call, settings, time, hash));

  std::unique_ptr<HttpClient> client;
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      client = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (client == nullptr) {
    client = std::make_unique<HttpClient>(HttpSettings{.connect_timeout = settings.patience.connect_timeout,
                                                       .stall_timeout = settings.patience.stall_timeout,
                                                       .ca_file = settings.ca_file});
  }
  S3Answer answer{.response = {}, .body = {}, .sent_at = time};
  answer.response = client->send(request, [&](const HttpResponse& response, std::span<const std::byte> bytes) {
    const bool is_success = response.status == 200 || response.status == 206;
    if (is_success && reader != nullptr && reader->take) return reader->take(response, bytes);
    answer.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return answer.body.size() <= kMostAnswerBytes;
  });
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(client));
  return answer;
}

S3Answer ObjectStore::State::send(const std::string& method, const std::string& key,
                                  const std::map<std::string, std::string>& query, std::span<const std::byte> body,
                                  const Reader* reader, bool may_miss) {
  S3Call call{.method = method, .host = {}, .path = {}, .query = query, .headers = {}};
  const std::string host = settings.endpoint.substr(settings.endpoint.find("://") + 3);
  const bool is_path_style = settings.is_path_style || url.bucket.find('.') != std::string::npos;
  call.host = is_path_style ? host : fmt::format("{}.{}", url.bucket, host);
  call.path = fmt::format("/{}", percent_encoded(key, "/"));
  if (is_path_style) call.path = fmt::format("/{}{}", url.bucket, key.empty() ? "" : call.path);
  const std::string what = S3Url{url.bucket, key}.text(), hash = sha256_of(body);
  std::chrono::milliseconds pause = settings.patience.first_pause;
  int64_t progress = 0;
  for (int num_tries = 1;; ++num_tries) {
    std::string reason;
    std::optional<S3Answer> answer;
    try {
      if (reader != nullptr && reader->begin) reader->begin(call);
      answer = send_once(call, body, hash, reader);
      const int status = answer->response.status;
      const std::string code = xml_value(answer->body, "Code");
      // Completing an upload answers 200 before it knows.
      const bool is_late_error = status == 200 && method == "POST" && answer->body.find("<Error>") != std::string::npos;
      const bool is_short = status < 300 && reader != nullptr && !reader->is_done();
      if (status < 300 && !is_late_error && !is_short) return std::move(*answer);
      if (may_miss && status == 404 && code != "NoSuchBucket") return std::move(*answer);
      if (!is_late_error && !is_short && !may_succeed_later(status, code)) refuse(what, call, *answer);
      reason = is_short ? "the answer ended early" : fmt::format("the answer was {} {}", status, code);
    } catch (const HttpError& error) {
      reason = without_secrets(error.what());
      if (!error.is_transient()) throw UserError(fmt::format("{}: {}", what, reason), "correct AWS_ENDPOINT_URL_S3");
    }
    if (reader != nullptr && reader->progress() > progress) {
      progress = reader->progress();
      num_tries = 1;
      pause = settings.patience.first_pause;
    }
    if (num_tries >= settings.patience.most_tries) {
      throw MachineError(fmt::format("{}: given up after {} tries: {}", what, num_tries, reason),
                         "try again later; AWS_MAX_ATTEMPTS sets how often a request is tried");
    }
    std::chrono::milliseconds wait = pause;
    if (answer) {
      const auto asked = asked_pause(answer->response, std::chrono::system_clock::now());
      if (asked) wait = std::clamp(*asked, pause, std::max(pause, settings.patience.most_pause));
    }
    log.warn("{}: {}; try {} of {} follows in {}", what, reason, num_tries + 1, settings.patience.most_tries,
             format_duration(static_cast<double>(wait.count()) / 1000));
    std::this_thread::sleep_for(wait);
    pause = std::min(pause * 2, settings.patience.most_pause);
  }
}

ObjectStore::ObjectStore(S3Settings settings, S3Url url, Logger& log)
    : state_(new State{.settings = std::move(settings), .url = std::move(url), .log = log, .mutex = {}, .idle = {}}) {}
ObjectStore::~ObjectStore() = default;
ObjectStore::ObjectStore(ObjectStore&&) noexcept = default;

const S3Url& ObjectStore::url() const { return state_->url; }

std::vector<StoredObject> ObjectStore::list(std::string_view beginning) const {
  const std::string below = state_->url.prefix.empty() ? "" : state_->url.prefix + "/";
  std::map<std::string, std::string> query = {{"list-type", "2"}, {"prefix", below + std::string(beginning)}};
  std::vector<StoredObject> objects;
  for (;;) {
    const std::string body = state_->send("GET", "", query).body;
    for (const std::string_view entry : xml_elements(body, "Contents")) {
      const std::string key = xml_value(entry, "Key");
      const std::optional<int64_t> size = parse_integer(xml_value(entry, "Size"));
      if (!key.starts_with(below) || !size) continue;
      objects.push_back({.name = key.substr(below.size()),
                         .etag = xml_value(entry, "ETag"),
                         .size = *size,
                         .modified = xml_value(entry, "LastModified")});
    }
    const std::string next = xml_value(body, "NextContinuationToken");
    if (xml_value(body, "IsTruncated") != "true" || next.empty()) break;
    query["continuation-token"] = next;
  }
  std::ranges::sort(objects, {}, &StoredObject::name);
  return objects;
}

void ObjectStore::read(const StoredObject& object, int64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  size_t done = 0;
  State::Reader reader;
  reader.begin = [&](S3Call& call) {
    call.headers["range"] = fmt::format("bytes={}-{}", offset + static_cast<int64_t>(done),
                                        offset + static_cast<int64_t>(out.size()) - 1);
    if (!object.etag.empty()) call.headers["if-match"] = object.etag;
  };
  reader.take = [&](const HttpResponse& response, std::span<const std::byte> bytes) {
    // A storage that ignores ranges would give the object's beginning.
    const bool is_whole = response.status == 200 && (offset > 0 || done > 0 || std::ssize(out) != object.size);
    if (is_whole || bytes.size() > out.size() - done) {
      throw UserError(fmt::format("{}: the storage answers another range than was asked for",
                                  S3Url{state_->url.bucket, state_->url.key(object.name)}.text()),
                      "use a storage that knows the header Range");
    }
    std::memcpy(out.data() + done, bytes.data(), bytes.size());
    done += bytes.size();
    return true;
  };
  reader.is_done = [&] { return done == out.size(); };
  reader.progress = [&] { return static_cast<int64_t>(done); };
  state_->send("GET", state_->url.key(object.name), {}, {}, &reader);
}

void ObjectStore::put(std::string_view name, std::string_view content) const {
  state_->send("PUT", state_->url.key(name), {}, std::as_bytes(std::span(content)));
}

void ObjectStore::State::put_parts(const std::string& key, const MappedFile& file, int64_t part_bytes,
                                   const std::string& upload) {
  const auto size = static_cast<int64_t>(file.size());
  std::vector<std::string> etags(static_cast<size_t>(div_up(size, part_bytes)));
  for_each_on_threads(etags.size(), kUploadThreads, [&](size_t i) {
    const int64_t begin = static_cast<int64_t>(i) * part_bytes;
    const auto bytes =
        file.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(part_bytes, size - begin)));
    const S3Answer answer = send("PUT", key, {{"partNumber", std::to_string(i + 1)}, {"uploadId", upload}}, bytes);
    etags[i] = answer.response.header("etag");
  });
  std::string parts = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < etags.size(); ++i) {
    parts += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags[i]);
  }
  parts += "</CompleteMultipartUpload>";
  const S3Answer answer =
      send("POST", key, {{"uploadId", upload}}, std::as_bytes(std::span(parts)), nullptr, /*may_miss=*/true);
  if (answer.response.status != 404) return;
  // A first try may have completed it, though its answer was lost.
  const S3Answer found = send("HEAD", key, {}, {}, nullptr, /*may_miss=*/true);
  if (found.response.header("content-length") != std::to_string(size)) {
    throw MachineError(fmt::format("{}: the storage lost the upload in parts", S3Url{url.bucket, key}.text()),
                       "does a rule of the bucket end uploads too soon, or does another run save there?");
  }
}

void ObjectStore::put_file(std::string_view name, const std::filesystem::path& path) const {
  const MappedFile file(path, MappedFile::Access::kSequential);
  const std::string key = state_->url.key(name);
  const auto size = static_cast<int64_t>(file.size());
  if (size <= kPartBytes) {
    state_->send("PUT", key, {}, file.bytes());
    return;
  }
  const std::string upload = xml_value(state_->send("POST", key, {{"uploads", ""}}).body, "UploadId");
  if (upload.empty()) {
    throw UserError(fmt::format("{}: the storage gives no id for an upload in parts", S3Url{url().bucket, key}.text()),
                    "use a storage that knows multipart uploads");
  }
  try {
    state_->put_parts(key, file, std::max(kPartBytes, div_up(size, kMostParts)), upload);
  } catch (...) {
    try {
      state_->send("DELETE", key, {{"uploadId", upload}}, {}, nullptr, /*may_miss=*/true);
    } catch (const UserError& error) {
      state_->log.warn("{}; the next save removes the parts", error.message());
    }
    throw;
  }
}

void ObjectStore::remove(std::string_view name) const {
  state_->send("DELETE", state_->url.key(name), {}, {}, nullptr, /*may_miss=*/true);
}

int64_t ObjectStore::abort_uploads(std::string_view beginning) const {
  int64_t count = 0;
  std::map<std::string, std::string> query = {{"uploads", ""}, {"prefix", state_->url.key(beginning)}};
  for (;;) {
    const std::string body = state_->send("GET", "", query).body;
    for (const std::string_view entry : xml_elements(body, "Upload")) {
      state_->send("DELETE", xml_value(entry, "Key"), {{"uploadId", xml_value(entry, "UploadId")}}, {}, nullptr, true);
      ++count;
    }
    if (xml_value(body, "IsTruncated") != "true") return count;
    query["key-marker"] = xml_value(body, "NextKeyMarker");
    query["upload-id-marker"] = xml_value(body, "NextUploadIdMarker");
  }
}

}  // namespace megalith
