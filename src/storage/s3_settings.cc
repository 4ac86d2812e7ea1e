#include "storage/s3_settings.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "config/option_value.h"
#include "core/error.h"
#include "core/file.h"
#include "core/strings.h"
#include "hub/names.h"
#include "hub/urls.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr const char* kExportRemedy =
    "put keys into the environment, as with: eval \"$(aws configure export-credentials --format env)\"";

using AwsProfile = std::map<std::string, std::string>;  // "s3.addressing_style" for an indented line below `s3 =`

// [name] or [profile name]; empty if the file or the profile is missing.
AwsProfile read_aws_profile(const fs::path& file, const std::string& name) {
  AwsProfile profile;
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return profile;
  const std::string text = read_file(file);
  bool is_in = false;
  std::string parent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin), words = trim(line);
    begin = end + 1;
    if (words.empty() || words.front() == '#' || words.front() == ';') continue;
    if (words.front() == '[') {
      std::string_view section = trim(words.substr(1, words.find(']') - 1));
      if (section.starts_with("profile ")) section = trim(section.substr(8));
      is_in = section == name;
      continue;
    }
    const size_t equals = words.find('=');
    if (!is_in || equals == std::string_view::npos) continue;
    const std::string key = lower_case(trim(words.substr(0, equals))), value(trim(words.substr(equals + 1)));
    const bool is_inner = line.front() == ' ' || line.front() == '\t';
    if (!is_inner) parent = key;
    profile[is_inner ? parent + "." + key : key] = value;
  }
  return profile;
}

class AwsSources {
 public:
  explicit AwsSources(const EnvironmentMap& environment) : environment_(environment) {
    name_ = first({"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
    const bool is_named = !name_.empty();
    if (!is_named) name_ = "default";
    credentials_file_ = file_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    config_file_ = file_of("AWS_CONFIG_FILE", "config");
    credentials_ = read_aws_profile(credentials_file_, name_);
    config_ = read_aws_profile(config_file_, name_);
    if (is_named && credentials_.empty() && config_.empty()) {
      throw UserError(fmt::format("AWS_PROFILE is {}, and neither {} nor {} has that profile", name_,
                                  credentials_file_.string(), config_file_.string()),
                      "name one that is there, or leave AWS_PROFILE unset");
    }
  }

  std::string first(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto found = environment_.find(name);
      if (found != environment_.end() && !trim(found->second).empty()) return std::string(trim(found->second));
    }
    return "";
  }
  std::string of_config(const std::string& key) const {
    for (const AwsProfile* profile : {&config_, &credentials_}) {
      if (const auto found = profile->find(key); found != profile->end()) return found->second;
    }
    return "";
  }
  // Variables first, then the profile.
  std::string setting(std::initializer_list<const char*> variables, const std::string& key) const {
    const std::string value = first(variables);
    return value.empty() ? of_config(key) : value;
  }

  void read_credentials(S3Settings& settings) const {
    settings.access_key = first({"AWS_ACCESS_KEY_ID"});
    settings.secret_key = first({"AWS_SECRET_ACCESS_KEY"});
    settings.session_token = first({"AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"});
    settings.credentials_source = "AWS_ACCESS_KEY_ID";
    if (settings.access_key.empty() != settings.secret_key.empty()) {
      throw UserError("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set", "set both or neither");
    }
    const std::pair<const AwsProfile*, const fs::path*> files[] = {{&credentials_, &credentials_file_},
                                                                   {&config_, &config_file_}};
    for (const auto& [profile, file] : files) {
      if (!settings.access_key.empty() || !profile->contains("aws_access_key_id")) continue;
      const auto value = [&, profile = profile](const char* key) {
        const auto found = profile->find(key);
        return found == profile->end() ? std::string() : found->second;
      };
      settings.access_key = value("aws_access_key_id");
      settings.secret_key = value("aws_secret_access_key");
      settings.session_token = value("aws_session_token");
      settings.credentials_source = fmt::format("profile {} of {}", name_, file->string());
    }
    if (settings.access_key.empty() || settings.secret_key.empty()) refuse_other_sources();
    const auto is_bad = [](char c) { return c <= ' ' || static_cast<unsigned char>(c) >= 0x7f; };
    for (const std::string* text : {&settings.access_key, &settings.secret_key, &settings.session_token}) {
      if (std::ranges::none_of(*text, is_bad)) continue;
      throw UserError(fmt::format("the keys of {} hold blanks or letters that keys have not",
                                  settings.credentials_source),
                      "copy them again");
    }
  }

 private:
  fs::path file_of(const char* variable, const char* name) const {
    std::string home = first({"HOME"});
    const passwd* user = home.empty() ? ::getpwuid(::getuid()) : nullptr;
    if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
    std::string path = first({variable});
    if (path.starts_with("~/")) path.replace(0, 1, home);
    return path.empty() ? fs::path(home) / ".aws" / name : fs::path(path);
  }

  [[noreturn]] void refuse_other_sources() const {
    for (const char* key : {"credential_process", "sso_session", "sso_start_url", "role_arn", "web_identity_token_file",
                            "login_session"}) {
      if (of_config(key).empty()) continue;
      throw UserError(fmt::format("profile {} of {} gets its credentials by {}, which is not read here", name_,
                                  config_file_.string(), key),
                      kExportRemedy);
    }
    for (const char* name : {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                             "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ROLE_ARN"}) {
      if (first({name}).empty()) continue;
      throw UserError(fmt::format("{} is set, and credentials of that kind are not read here", name), kExportRemedy);
    }
    throw UserError(fmt::format("no credentials for object storage: AWS_ACCESS_KEY_ID is not set, and profile {} is "
                                "neither in {} nor in {} with keys",
                                name_, credentials_file_.string(), config_file_.string()),
                    kExportRemedy);
  }

  const EnvironmentMap& environment_;
  std::string name_;
  fs::path credentials_file_, config_file_;
  AwsProfile credentials_, config_;
};

bool is_true(const std::string& value) { return lower_case(value) == "true" || value == "1"; }

void read_endpoint(S3Settings& settings, const AwsSources& sources) {
  for (const auto& [variable, key] : {std::pair("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint"),
                                      std::pair("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint")}) {
    if (!is_true(sources.setting({variable}, key))) continue;
    throw UserError(fmt::format("{} is on, and such addresses are not made here", variable),
                    "give the address itself in AWS_ENDPOINT_URL_S3");
  }
  const bool is_ignored =
      is_true(sources.setting({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}, "ignore_configured_endpoint_urls"));
  if (!is_ignored) {
    settings.endpoint = sources.first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
    if (settings.endpoint.empty() && !sources.of_config("services").empty()) {
      throw UserError("the AWS profile names a `services` section, which is not read here",
                      "give the address in AWS_ENDPOINT_URL_S3");
    }
    if (settings.endpoint.empty()) settings.endpoint = sources.of_config("endpoint_url");
  }
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  const std::string style = sources.of_config("s3.addressing_style");
  settings.is_path_style = style == "path" || (style != "virtual" && !settings.endpoint.empty());
  const bool has_more = settings.endpoint.find_first_of("/?#@", settings.endpoint.find("://") + 3) != std::string::npos;
  if (!settings.endpoint.empty() && (url_origin(settings.endpoint).empty() || has_more)) {
    throw UserError(fmt::format("the address of the object storage is '{}'", shown_url(settings.endpoint)),
                    "give AWS_ENDPOINT_URL_S3 as in http://host:9000");
  }
  if (settings.endpoint.empty()) {
    settings.endpoint = fmt::format("https://s3.{}.amazonaws.com{}", settings.region,
                                    settings.region.starts_with("cn-") ? ".cn" : "");
  }
}

}  // namespace

std::string S3Url::text() const { return fmt::format("{}{}{}{}", kScheme, bucket, prefix.empty() ? "" : "/", prefix); }

std::string S3Url::key(std::string_view name) const {
  if (name.empty()) return prefix;
  return prefix.empty() ? std::string(name) : fmt::format("{}/{}", prefix, name);
}

bool is_object_url(std::string_view text) { return text.starts_with(kScheme); }

S3Url parse_object_url(std::string_view text) {
  const std::string_view rest = text.substr(std::min(kScheme.size(), text.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Url url{.bucket = std::string(rest.substr(0, slash)), .prefix = std::string(rest.substr(slash))};
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  url.prefix.erase(0, std::min(url.prefix.find_first_not_of('/'), url.prefix.size()));
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  const bool is_bucket =
      url.bucket.size() >= 3 && lower_case(url.bucket).find_first_not_of(kLetters) == std::string::npos;
  // The prefix is a folder here, too.
  if (!is_object_url(text) || !is_bucket || (!url.prefix.empty() && !is_safe_hub_file(url.prefix))) {
    throw UserError(fmt::format("'{}' names no bucket and prefix of an object storage", text),
                    "write s3://bucket/prefix");
  }
  return url;
}

S3Settings read_s3_settings(const EnvironmentMap& environment) {
  const AwsSources sources(environment);
  S3Settings settings;
  const std::string region = sources.setting({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (!region.empty()) settings.region = region;
  if (settings.region.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") != std::string::npos) {
    throw UserError(fmt::format("'{}' is no region of an object storage", settings.region),
                    "set AWS_REGION as in eu-west-1");
  }
  read_endpoint(settings, sources);
  sources.read_credentials(settings);
  settings.ca_file = sources.setting({"AWS_CA_BUNDLE"}, "ca_bundle");
  if (const std::string tries = sources.setting({"AWS_MAX_ATTEMPTS"}, "max_attempts"); !tries.empty()) {
    const std::optional<int64_t> number = parse_integer(tries);
    if (!number || *number < 1 || *number > 1000) {
      throw UserError(fmt::format("AWS_MAX_ATTEMPTS is '{}'", tries), "give a whole number from 1");
    }
    settings.patience.most_tries = static_cast<int>(*number);
  }
  return settings;
}

}  // namespace megalith
