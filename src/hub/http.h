// HTTP over libcurl: one request at a time. Redirects are followed here, so a secret stays with its host.
//
// libcurl.so.4 is loaded with the first client, so the program starts without it. Proxies come from the environment
// (https_proxy, no_proxy).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace megalith {

// No answer, or an incomplete one. The message holds no query and no secret.
class HttpError : public std::runtime_error {
 public:
  HttpError(const std::string& message, bool is_transient) : std::runtime_error(message), is_transient_(is_transient) {}
  // True if the same request may soon succeed.
  bool is_transient() const { return is_transient_; }

 private:
  bool is_transient_;
};

struct HttpSettings {
  std::chrono::milliseconds connect_timeout{10'000};
  // Once connected, this many bytes per second must arrive over each stall_timeout; slower counts as no answer.
  std::chrono::milliseconds stall_timeout{10'000};
  int64_t stall_bytes_per_s = 1024;
  std::string ca_file;  // certificates to trust instead of the system's
};

struct HttpRequest {
  std::string url;
  bool wants_body = true;  // else HEAD
  int64_t first_byte = 0;  // above 0: asks for the rest from there
  // Sent as `Authorization: Bearer`, only to hosts of secret_origin (scheme, name and port).
  std::string secret, secret_origin;
  // Asked many times a second; true ends the request with an HttpError. May be empty.
  std::function<bool()> should_stop;
};

using HttpHeaders = std::map<std::string, std::string>;  // names in lower case

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;         // of the last answer
  HttpHeaders origin_headers;  // of the answers from the host that was asked, redirects included; the latest wins
  std::string origin() const;  // of the host that answered
  std::string url;             // that answered; may be signed, so not for messages

  // A header of the last answer, or "".
  std::string header(std::string_view name) const;
  std::string origin_header(std::string_view name) const;
};

// "https://host:443" in lower case, always with the port; "" unless the text is an http or https URL.
std::string url_origin(std::string_view url);

// A URL for messages: without user, password, query and fragment.
std::string shown_url(std::string_view url);

// Escapes a part of a URL's path: anything but letters, digits, "-._~" and `kept` becomes %XX.
std::string percent_encoded(std::string_view text, std::string_view kept = "");

class HttpClient {
 public:
  // UserError if libcurl cannot be loaded.
  explicit HttpClient(HttpSettings settings);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // Receives a body's bytes with status 200 or 206. Returning false ends the request early, without an error.
  using Sink = std::function<bool(const HttpResponse&, std::span<const std::byte>)>;

  // The last answer after redirects, whatever its status; other bodies are dropped. A HEAD is not sent on to another
  // host: the redirect is the answer. Throws HttpError, and what the sink throws. Refused: redirects from https to
  // http, to another scheme, to nowhere or without end, and endless headers.
  HttpResponse send(const HttpRequest& request, const Sink& sink = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megalith
