#include "hub/http.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <thread>

#include "core/error.h"
#include "core/strings.h"
#include "core/time.h"
#include "hub/urls.h"

namespace megalith {
namespace {

constexpr int kMostRedirects = 10;
constexpr int64_t kMostHeaderBytes = int64_t{256} << 10;
constexpr int64_t kMostDroppedBytes = int64_t{1} << 20;  // of an error's or a redirect's body
constexpr int kLookEvery_ms = 20;                        // at stalls and should_stop

// A stable ABI since 7.16 (2006); curl_multi_wait came with 7.28 (2012).
struct CurlLibrary {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_reset) easy_reset;
  // Variadic functions, macros in the header.
  CURLcode (*easy_setopt)(CURL*, CURLoption, ...);
  CURLcode (*easy_getinfo)(CURL*, CURLINFO, ...);
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_wait) multi_wait;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
};

CurlLibrary load_curl() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"}) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw UserError("libcurl.so.4 is not on this machine, and downloads need it",
                    "install it (apt-get install libcurl4), or fetch the files elsewhere and name their folder");
  }
  CurlLibrary curl{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) throw UserError(fmt::format("libcurl.so.4 has no {}", name), "install a newer libcurl");
  };
  find(curl.global_init, "curl_global_init");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.easy_reset, "curl_easy_reset");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.multi_init, "curl_multi_init");
  find(curl.multi_cleanup, "curl_multi_cleanup");
  find(curl.multi_add_handle, "curl_multi_add_handle");
  find(curl.multi_remove_handle, "curl_multi_remove_handle");
  find(curl.multi_perform, "curl_multi_perform");
  find(curl.multi_wait, "curl_multi_wait");
  find(curl.multi_info_read, "curl_multi_info_read");
  find(curl.slist_append, "curl_slist_append");
  find(curl.slist_free_all, "curl_slist_free_all");
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    throw UserError("libcurl does not start", "reinstall it (apt-get install --reinstall libcurl4)");
  }
  return curl;
}

// Never unloaded: threads may hold handles.
const CurlLibrary& curl_library() {
  static const CurlLibrary library = load_curl();
  return library;
}

bool is_transient_curl_error(CURLcode code) {
  constexpr std::array kTransient = {CURLE_COULDNT_RESOLVE_PROXY,
                                     CURLE_COULDNT_RESOLVE_HOST,
                                     CURLE_COULDNT_CONNECT,
                                     CURLE_PARTIAL_FILE,
                                     CURLE_OPERATION_TIMEDOUT,
                                     CURLE_SSL_CONNECT_ERROR,
                                     CURLE_GOT_NOTHING,
                                     CURLE_SEND_ERROR,
                                     CURLE_RECV_ERROR,
                                     CURLE_HTTP2,
                                     CURLE_HTTP2_STREAM};
  for (const CURLcode one : kTransient) {
    if (code == one) return true;
  }
  return false;
}

// One exchange, for libcurl's callbacks.
struct HttpExchange {
  const HttpClient::Sink* sink = nullptr;
  bool wants_error_body = false;
  std::span<const std::byte> body, unsent;
  HttpResponse response;
  int64_t num_bytes = 0, num_header_bytes = 0, num_dropped_bytes = 0;
  bool is_stopped = false;  // by the sink
  std::exception_ptr failure;
};

// Keeps exceptions from C code; they end the transfer.
template <typename Body>
size_t guarded(HttpExchange& exchange, size_t num_bytes, const Body& body) {
  exchange.num_bytes += static_cast<int64_t>(num_bytes);
  try {
    body();
  } catch (...) {
    exchange.failure = std::current_exception();
  }
  return exchange.failure || exchange.is_stopped ? 0 : num_bytes;
}

size_t on_http_header(char* data, size_t size, size_t count, void* context) {
  auto& exchange = *static_cast<HttpExchange*>(context);
  return guarded(exchange, size * count, [&] {
    exchange.num_header_bytes += static_cast<int64_t>(size * count);
    if (exchange.num_header_bytes > kMostHeaderBytes) {
      throw HttpError(fmt::format("{} sends headers without end", shown_url(exchange.response.url)), false);
    }
    const std::string_view line = trim({data, size * count});
    // A new answer, after a proxy's or `100 Continue`.
    if (line.starts_with("HTTP/")) exchange.response.headers.clear();
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    exchange.response.headers[lower_case(trim(line.substr(0, colon)))] = std::string(trim(line.substr(colon + 1)));
  });
}

size_t on_http_body(char* data, size_t size, size_t count, void* context);

size_t on_http_send(char* data, size_t size, size_t count, void* context) {
  auto& exchange = *static_cast<HttpExchange*>(context);
  const size_t num_bytes = std::min(size * count, exchange.unsent.size());
  std::memcpy(data, exchange.unsent.data(), num_bytes);
  exchange.unsent = exchange.unsent.subspan(num_bytes);
  exchange.num_bytes += static_cast<int64_t>(num_bytes);
  return num_bytes;
}

// A kept connection may turn out dead: libcurl then sends the body anew.
int on_http_rewind(void* context, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<HttpExchange*>(context);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > exchange.body.size()) return CURL_SEEKFUNC_FAIL;
  exchange.unsent = exchange.body.subspan(static_cast<size_t>(offset));
  return CURL_SEEKFUNC_OK;
}

}  // namespace

struct HttpClient::State {
  HttpSettings settings;
  CURL* handle = nullptr;
  CURLM* multi = nullptr;  // keeps connections

  // Ends with the answer, by the sink or should_stop, or on a stall.
  CURLcode transfer(HttpExchange& exchange, const HttpRequest& request) const;
  // Follows no redirect: puts its target, or "", into `redirect`.
  HttpResponse exchange(const HttpRequest& request, const std::string& url, const Sink& sink, std::string& redirect);
};

namespace {

struct HttpBodyContext {
  HttpExchange* exchange;
  CURL* handle;
};

size_t on_http_body(char* data, size_t size, size_t count, void* context) {
  auto& body = *static_cast<HttpBodyContext*>(context);
  HttpExchange& exchange = *body.exchange;
  return guarded(exchange, size * count, [&] {
    long status = 0;
    curl_library().easy_getinfo(body.handle, CURLINFO_RESPONSE_CODE, &status);
    exchange.response.status = static_cast<int>(status);
    if ((status != 200 && status != 206 && !exchange.wants_error_body) || !*exchange.sink) {
      exchange.num_dropped_bytes += static_cast<int64_t>(size * count);
      exchange.is_stopped = exchange.num_dropped_bytes > kMostDroppedBytes;
      return;
    }
    const auto bytes = std::as_bytes(std::span(data, size * count));
    if (!(*exchange.sink)(exchange.response, bytes)) exchange.is_stopped = true;
  });
}

// At least `quota` bytes must arrive within each `timeout`.
class HttpStallWatch {
 public:
  explicit HttpStallWatch(const HttpSettings& settings)
      : timeout_(settings.stall_timeout),
        quota_(std::max<int64_t>(1, settings.stall_bytes_per_s * settings.stall_timeout.count() / 1000)) {}

  // num_bytes  since the request began
  bool is_stalled(int64_t num_bytes) {
    if (num_bytes - marked_bytes_ >= quota_) begin_at(num_bytes);
    return watch_.elapsed_ms() > static_cast<double>(timeout_.count());
  }
  void begin_at(int64_t num_bytes) {
    marked_bytes_ = num_bytes;
    watch_.restart();
  }

 private:
  std::chrono::milliseconds timeout_;
  int64_t quota_, marked_bytes_ = 0;
  Stopwatch watch_;
};

}  // namespace

HttpClient::HttpClient(HttpSettings settings) : state_(std::make_unique<State>()) {
  state_->settings = std::move(settings);
  state_->handle = curl_library().easy_init();
  state_->multi = curl_library().multi_init();
  MEGALITH_CHECK(state_->handle != nullptr && state_->multi != nullptr, "libcurl gives no handle");
}

HttpClient::~HttpClient() {
  if (!state_) return;
  curl_library().easy_cleanup(state_->handle);
  curl_library().multi_cleanup(state_->multi);
}

HttpClient::HttpClient(HttpClient&&) noexcept = default;

CURLcode HttpClient::State::transfer(HttpExchange& exchange, const HttpRequest& request) const {
  const CurlLibrary& curl = curl_library();
  const auto fail = [&](const std::string& reason) {
    exchange.failure =
        std::make_exception_ptr(HttpError(fmt::format("{}: {}", shown_url(exchange.response.url), reason), true));
  };
  HttpStallWatch watch(settings);
  bool is_connected = false;
  curl.multi_add_handle(multi, handle);
  CURLcode code = CURLE_OK;
  for (int num_running = 1; !exchange.failure;) {
    if (curl.multi_perform(multi, &num_running) != CURLM_OK) fail("libcurl fails");
    if (num_running == 0 || exchange.failure) break;
    // Until then connect_timeout counts.
    double connecting_s = 0;
    if (!is_connected) curl.easy_getinfo(handle, CURLINFO_PRETRANSFER_TIME, &connecting_s);
    if (!is_connected && connecting_s > 0) {
      is_connected = true;
      watch.begin_at(exchange.num_bytes);
    }
    if (request.should_stop && request.should_stop()) {
      fail("the answer was not complete in time");
    } else if (is_connected && watch.is_stalled(exchange.num_bytes)) {
      fail(fmt::format("fewer than {} bytes a second arrived for {}", settings.stall_bytes_per_s,
                       format_duration(static_cast<double>(settings.stall_timeout.count()) / 1000)));
    } else {
      int num_ready = 0;
      curl.multi_wait(multi, nullptr, 0, kLookEvery_ms, &num_ready);
      // Returns at once without a socket, as during name resolution.
      if (num_ready == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  int num_left = 0;
  while (const CURLMsg* message = curl.multi_info_read(multi, &num_left)) {
    if (message->msg == CURLMSG_DONE) code = message->data.result;
  }
  curl.multi_remove_handle(multi, handle);
  return code;
}

HttpResponse HttpClient::State::exchange(const HttpRequest& request, const std::string& url, const Sink& sink,
                                         std::string& redirect) {
  const CurlLibrary& curl = curl_library();
  HttpExchange exchange;
  exchange.sink = &sink;
  exchange.response.url = url;
  exchange.wants_error_body = request.wants_error_body;
  exchange.body = exchange.unsent = request.body;
  HttpBodyContext body{&exchange, handle};
  std::array<char, CURL_ERROR_SIZE> words{};
  curl.easy_reset(handle);
  curl.easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);  // threads
  curl.easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
  curl.easy_setopt(handle, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl.easy_setopt(handle, CURLOPT_USERAGENT, "megalith");
  curl.easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_timeout.count()));
  curl.easy_setopt(handle, CURLOPT_ERRORBUFFER, words.data());
  curl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_http_header);
  curl.easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  curl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_http_body);
  curl.easy_setopt(handle, CURLOPT_WRITEDATA, &body);
  curl.easy_setopt(handle, CURLOPT_BUFFERSIZE, 256L * 1024);
  if (!request.wants_body) curl.easy_setopt(handle, CURLOPT_NOBODY, 1L);
  if (!settings.ca_file.empty()) curl.easy_setopt(handle, CURLOPT_CAINFO, settings.ca_file.c_str());
  const std::string range = fmt::format("{}-", request.first_byte);
  if (request.first_byte > 0) curl.easy_setopt(handle, CURLOPT_RANGE, range.c_str());

  curl_slist* headers = curl.slist_append(nullptr, "Accept-Encoding: identity");  // sizes are the file's
  if (!request.secret.empty() && url_origin(url) == request.secret_origin) {
    headers = curl.slist_append(headers, fmt::format("Authorization: Bearer {}", request.secret).c_str());
  }
  for (const auto& [name, value] : request.headers) {
    headers = curl.slist_append(headers, fmt::format("{}: {}", name, value).c_str());
  }
  if (request.method == "PUT" || request.method == "POST") {
    curl.easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl.easy_setopt(handle, CURLOPT_READFUNCTION, on_http_send);
    curl.easy_setopt(handle, CURLOPT_READDATA, &exchange);
    curl.easy_setopt(handle, CURLOPT_SEEKFUNCTION, on_http_rewind);
    curl.easy_setopt(handle, CURLOPT_SEEKDATA, &exchange);
    curl.easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    headers = curl.slist_append(headers, "Expect:");  // no round trip before the body
  }
  if (!request.method.empty()) curl.easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl.easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
  const CURLcode code = transfer(exchange, request);
  curl.slist_free_all(headers);

  if (exchange.failure) std::rethrow_exception(exchange.failure);
  if (code != CURLE_OK && !exchange.is_stopped) {
    throw HttpError(fmt::format("{}: {}", shown_url(url), words[0] ? words.data() : curl.easy_strerror(code)),
                    is_transient_curl_error(code));
  }
  long status = 0;
  const char* target = nullptr;
  curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  curl.easy_getinfo(handle, CURLINFO_REDIRECT_URL, &target);
  exchange.response.status = static_cast<int>(status);
  redirect = target != nullptr ? target : "";
  return std::move(exchange.response);
}

HttpResponse HttpClient::send(const HttpRequest& request, const Sink& sink) {
  std::string url = request.url;
  const std::string first_origin = url_origin(url);
  HttpHeaders origin_headers;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    const std::string origin = url_origin(url);
    if (origin.empty()) throw HttpError(fmt::format("{} is no http or https URL", shown_url(url)), false);
    std::string redirect;
    HttpResponse response = state_->exchange(request, url, sink, redirect);
    if (origin == first_origin) {
      for (const auto& [name, value] : response.headers) origin_headers[name] = value;
    }
    response.origin_headers = origin_headers;
    if (!request.follows_redirects) return response;
    if (redirect.empty()) {
      if (response.status < 301 || response.status > 308 || response.status == 304) return response;
      throw HttpError(fmt::format("{} answers {} and does not say where to go", shown_url(url), response.status),
                      false);
    }
    if (url_origin(redirect).empty()) {
      throw HttpError(
          fmt::format("{} redirects to {}, which is neither http nor https", shown_url(url), shown_url(redirect)),
          false);
    }
    if (!request.wants_body && url_origin(redirect) != first_origin) return response;
    if (origin.starts_with("https:") && !url_origin(redirect).starts_with("https:")) {
      throw HttpError(fmt::format("{} redirects to {}, which is not encrypted", shown_url(url), shown_url(redirect)),
                      false);
    }
    url = redirect;
  }
  throw HttpError(fmt::format("{} redirects more than {} times", shown_url(request.url), kMostRedirects), false);
}

std::string HttpResponse::origin() const { return url_origin(url); }

std::string HttpResponse::header(std::string_view name) const {
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? "" : found->second;
}

std::string HttpResponse::origin_header(std::string_view name) const {
  const auto found = origin_headers.find(std::string(name));
  return found == origin_headers.end() ? "" : found->second;
}

}  // namespace megalith
