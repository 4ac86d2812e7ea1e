#include "compat/cvs_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/strings.h"
#include "metrics/svg_plot.h"

namespace megalith {
namespace {

// "6214.3 tokens/s, expected at least 6500.0 tokens/s"
std::string found_and_expected(const CvsFinding& finding) {
  if (finding.expected.empty()) return finding.found;
  return fmt::format("{}, expected {}", finding.found, finding.expected);
}

Findings plain_findings(const CvsVerdict& verdict) {
  Findings plain;
  for (const CvsFinding& one : verdict.findings) {
    plain.push_back({one.topic, one.check, one.level, found_and_expected(one), one.remedy});
  }
  return plain;
}

// XML 1.0 cannot represent most control characters, even escaped.
std::string escape_xml(const std::string& text) {
  std::string clean;
  for (const char c : escape_html(text)) {
    const auto code = static_cast<unsigned char>(c);
    clean += code < 0x20 && c != '\n' && c != '\t' ? '?' : c;
  }
  return clean;
}

// "finite"; numbered, "note 2", if a topic has several of one name.
std::vector<std::string> case_names(const CvsVerdict& verdict) {
  std::vector<std::string> names;
  for (size_t i = 0; i < verdict.findings.size(); ++i) {
    const CvsFinding& one = verdict.findings[i];
    const auto before =
        std::count_if(verdict.findings.begin(), verdict.findings.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const CvsFinding& other) { return other.topic == one.topic && other.check == one.check; });
    names.push_back(before == 0 ? one.check : fmt::format("{} {}", one.check, before + 1));
  }
  return names;
}

std::string junit_case(const CvsFinding& finding, const std::string& name) {
  const std::string head = fmt::format("    <testcase classname=\"verify.{}\" name=\"{}\" time=\"0\"",
                                       escape_xml(finding.topic), escape_xml(name));
  const std::string text = escape_xml(found_and_expected(finding));
  switch (finding.level) {
    case FindingLevel::kError:
      return fmt::format("{}><failure type=\"{}\" message=\"{}\">{}</failure></testcase>\n", head,
                         escape_xml(finding.topic), text, escape_xml(finding.remedy));
    case FindingLevel::kWarning:
      return fmt::format("{}><system-out>warning: {}</system-out></testcase>\n", head, text);
    case FindingLevel::kNote:
      return fmt::format("{}><skipped message=\"{}\"/></testcase>\n", head, text);
    case FindingLevel::kOk:
      return fmt::format("{}><system-out>{}</system-out></testcase>\n", head, text);
  }
  return "";
}

int64_t num_of_level(const CvsVerdict& verdict, FindingLevel level) {
  return std::count_if(verdict.findings.begin(), verdict.findings.end(),
                       [&](const CvsFinding& one) { return one.level == level; });
}

constexpr const char* kPageStyle =
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 "
    "1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid "
    "#8884;"
    "vertical-align:top}.ok{color:#2a8a3e}.error{color:#c62828;font-weight:600}.warning{color:#b26a00}.note{opacity:."
    "7}";

std::string loss_picture(const CvsVerdict& verdict) {
  PlotSeries series{.name = "lm loss", .x = {}, .y = {}};
  for (const CvsStep& step : verdict.steps) {
    if (!step.loss) continue;
    series.x.push_back(static_cast<double>(step.iteration));
    series.y.push_back(*step.loss);
  }
  return render_svg_plot(
      {.title = "lm loss", .subtitle = "", .x_label = "iteration", .y_label = "lm loss", .has_whole_x = true},
      {series});
}

std::string page_part(const CvsVerdict& verdict) {
  const bool is_passed = verdict.is_passed();
  std::string text = fmt::format(
      "<h2 class=\"{}\">{}: {}</h2>\n<p>{}</p>\n<table><tr><th>topic</th><th>check</th><th></th><th>found</th>"
      "<th>expected</th><th>what to do</th></tr>\n",
      is_passed ? "ok" : "error", escape_html(verdict.of.name()), is_passed ? "passed" : "failed",
      escape_html(verdict.run));
  for (const CvsFinding& one : verdict.findings) {
    text += fmt::format("<tr><td>{}</td><td>{}</td><td class=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                        escape_html(one.topic), escape_html(one.check), name_of(one.level), name_of(one.level),
                        escape_html(one.found), escape_html(one.expected), escape_html(one.remedy));
  }
  return text + "</table>\n" + (verdict.steps.empty() ? "" : loss_picture(verdict));
}

}  // namespace

std::string verdicts_text(std::span<const CvsVerdict> verdicts) {
  std::string text;
  for (const CvsVerdict& verdict : verdicts) {
    text += fmt::format("{}\n{}verdict: {}\n", verdict.run, findings_text(plain_findings(verdict)),
                        verdict.is_passed() ? "passed" : "failed");
    if (&verdict != &verdicts.back()) text += "\n";
  }
  return text;
}

OrderedJson verdicts_json(std::span<const CvsVerdict> verdicts) {
  OrderedJson object;
  object["is_passed"] =
      std::all_of(verdicts.begin(), verdicts.end(), [](const CvsVerdict& one) { return one.is_passed(); });
  object["runs"] = OrderedJson::array();
  for (const CvsVerdict& verdict : verdicts) {
    OrderedJson findings = OrderedJson::array();
    for (const CvsFinding& one : verdict.findings) {
      findings.push_back({{"topic", one.topic},
                          {"check", one.check},
                          {"level", name_of(one.level)},
                          {"found", one.found},
                          {"expected", one.expected},
                          {"remedy", one.remedy}});
    }
    object["runs"].push_back({{"run", verdict.run},
                              {"case", verdict.of.name()},
                              {"is_passed", verdict.is_passed()},
                              {"findings", std::move(findings)}});
  }
  return object;
}

std::string verdicts_junit(std::span<const CvsVerdict> verdicts, const std::string& timestamp) {
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"megalith verify\">\n";
  for (const CvsVerdict& verdict : verdicts) {
    text += fmt::format(
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"0\" "
        "timestamp=\"{}\">\n",
        escape_xml(fmt::format("{} {}", verdict.of.name(), verdict.run)), verdict.findings.size(),
        num_of_level(verdict, FindingLevel::kError), num_of_level(verdict, FindingLevel::kNote), timestamp);
    const std::vector<std::string> names = case_names(verdict);
    for (size_t i = 0; i < names.size(); ++i) text += junit_case(verdict.findings[i], names[i]);
    text += "  </testsuite>\n";
  }
  return text + "</testsuites>\n";
}

std::string verdicts_page(std::span<const CvsVerdict> verdicts) {
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>verdict · "
      "Megalith</title><style>{}</style></head>"
      "<body>\n<h1>megalith verify</h1>\n",
      kPageStyle);
  for (const CvsVerdict& verdict : verdicts) text += page_part(verdict);
  return text + "</body></html>\n";
}

}  // namespace megalith
