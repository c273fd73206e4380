#include "llm/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "llm/escape.h"

namespace llm {
namespace {

constexpr int kNarrowWidth = 400;
constexpr int kMostPoints = 240;
constexpr int kLeft = 52, kRight = 14, kTop = 8, kBottom = 40;

// Consecutive points of a series taken together.
struct Bucket {
  double x, mean, least, greatest;
};

std::vector<Bucket> Reduce(const ChartSeries& series) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isfinite(series.y[i])) points.emplace_back(series.x[i], series.y[i]);
  }
  const size_t size = series.kind == ChartSeries::Kind::kLine
                          ? std::max<size_t>(1, (points.size() + kMostPoints - 1) / kMostPoints)
                          : 1;
  std::vector<Bucket> buckets;
  for (size_t begin = 0; begin < points.size(); begin += size) {
    const size_t end = std::min(begin + size, points.size());
    Bucket bucket{0, 0, points[begin].second, points[begin].second};
    for (size_t i = begin; i < end; ++i) {
      bucket.x += points[i].first;
      bucket.mean += points[i].second;
      bucket.least = std::min(bucket.least, points[i].second);
      bucket.greatest = std::max(bucket.greatest, points[i].second);
    }
    bucket.x /= static_cast<double>(end - begin);
    bucket.mean /= static_cast<double>(end - begin);
    buckets.push_back(bucket);
  }
  return buckets;
}

// What both widths of a plot share.
struct Prepared {
  const Chart& chart;
  std::vector<std::vector<Bucket>> buckets;  // one list a series; empty for reference levels
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
};

Prepared Prepare(const Chart& chart) {
  Prepared p{chart, {}};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  p.x_low = p.y_low = kInfinity;
  p.x_high = p.y_high = -kInfinity;
  const auto include_y = [&](double y) {
    if (!std::isfinite(y)) return;
    p.y_low = std::min(p.y_low, y);
    p.y_high = std::max(p.y_high, y);
  };
  for (const ChartSeries& series : chart.series) {
    const bool reference = series.kind == ChartSeries::Kind::kReference;
    p.buckets.push_back(reference ? std::vector<Bucket>() : Reduce(series));
    if (reference) include_y(series.y[0]);
    for (const Bucket& bucket : p.buckets.back()) {
      p.x_low = std::min(p.x_low, bucket.x);
      p.x_high = std::max(p.x_high, bucket.x);
      include_y(bucket.least);
      include_y(bucket.greatest);
    }
  }
  if (!(p.x_low < p.x_high)) {
    p.x_low = std::isfinite(p.x_low) ? p.x_low - 0.5 : 0;
    p.x_high = p.x_low + 1;
  }
  if (!std::isfinite(p.y_low)) p.y_low = 0, p.y_high = 1;
  if (chart.from_zero) p.y_low = std::min(p.y_low, 0.0);
  const double span = p.y_high - p.y_low;
  const double margin = span > 0 ? 0.06 * span : std::max(std::abs(p.y_high) * 0.1, 1e-9);
  p.y_high += margin;
  if (!chart.from_zero || p.y_low < 0) p.y_low -= margin;
  return p;
}

std::string TickLabel(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (step >= 5000) return absl::StrFormat("%gk", value / 1e3);
  if (step < 1e-5) return absl::StrFormat("%.1e", value);
  return absl::StrFormat(
      "%.*f", std::max(0, static_cast<int>(-std::floor(std::log10(step * 1.0001)))), value);
}

// Maps values to places of one SVG.
struct Frame {
  const Prepared& p;
  int width, height;
  double X(double x) const {
    return kLeft + (x - p.x_low) / (p.x_high - p.x_low) * (width - kLeft - kRight);
  }
  double Y(double y) const {
    return height - kBottom - (y - p.y_low) / (p.y_high - p.y_low) * (height - kTop - kBottom);
  }
};

void AppendAxes(const Frame& f, std::string& svg) {
  const int bottom = f.height - kBottom;
  const int right = f.width - kRight;
  const std::vector<double> y_ticks = Ticks(f.p.y_low, f.p.y_high, 5);
  for (const double y : y_ticks) {
    absl::StrAppendFormat(&svg, "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f />", kLeft, right,
                          f.Y(y), f.Y(y));
    absl::StrAppendFormat(&svg, "<text class=tick text-anchor=end x=%d y=%.1f>%s</text>", kLeft - 7,
                          f.Y(y) + 4,
                          TickLabel(y, y_ticks.size() > 1 ? y_ticks[1] - y_ticks[0] : y));
  }
  const std::vector<double> x_ticks = Ticks(f.p.x_low, f.p.x_high, f.width / 90);
  for (const double x : x_ticks) {
    absl::StrAppendFormat(&svg, "<line class=axis x1=%.1f x2=%.1f y1=%d y2=%d />", f.X(x), f.X(x),
                          bottom, bottom + 4);
    absl::StrAppendFormat(&svg, "<text class=tick text-anchor=middle x=%.1f y=%d>%s</text>", f.X(x),
                          bottom + 17,
                          TickLabel(x, x_ticks.size() > 1 ? x_ticks[1] - x_ticks[0] : x));
  }
  absl::StrAppendFormat(&svg, "<line class=axis x1=%d x2=%d y1=%d y2=%d />", kLeft, right, bottom,
                        bottom);
  absl::StrAppendFormat(&svg, "<text class=name text-anchor=end x=%d y=%d>%s</text>", right,
                        f.height - 6, HtmlText(f.p.chart.x_title));
}

void AppendSeries(const Frame& f, size_t index, std::string& svg) {
  const ChartSeries& series = f.p.chart.series[index];
  if (series.kind == ChartSeries::Kind::kReference) {
    if (!std::isfinite(series.y[0])) return;
    absl::StrAppendFormat(&svg, "<line class=\"level c%d\" x1=%d x2=%d y1=%.1f y2=%.1f />",
                          series.colour, kLeft, f.width - kRight, f.Y(series.y[0]),
                          f.Y(series.y[0]));
    return;
  }
  const std::vector<Bucket>& buckets = f.p.buckets[index];
  std::string line, upper, lower;
  for (const Bucket& b : buckets) absl::StrAppendFormat(&line, "%.1f,%.1f ", f.X(b.x), f.Y(b.mean));
  if (buckets.size() < series.x.size() && series.kind == ChartSeries::Kind::kLine) {
    for (const Bucket& b : buckets)
      absl::StrAppendFormat(&upper, "%.1f,%.1f ", f.X(b.x), f.Y(b.greatest));
    for (size_t i = buckets.size(); i-- > 0;) {
      absl::StrAppendFormat(&lower, "%.1f,%.1f ", f.X(buckets[i].x), f.Y(buckets[i].least));
    }
    absl::StrAppendFormat(&svg, "<polygon class=\"band c%d\" points=\"%s%s\" />", series.colour,
                          upper, lower);
  }
  absl::StrAppendFormat(&svg, "<polyline class=\"line c%d\" points=\"%s\" />", series.colour, line);
  if (series.kind == ChartSeries::Kind::kMarkers || buckets.size() == 1) {
    for (const Bucket& b : buckets) {
      absl::StrAppendFormat(&svg, "<circle class=\"dot c%d\" r=3 cx=%.1f cy=%.1f />", series.colour,
                            f.X(b.x), f.Y(b.mean));
    }
  }
}

std::string Svg(const Prepared& p, int width, int height, const char* css) {
  const Frame frame{p, width, height};
  std::string svg = absl::StrFormat(
      "<svg class=%s viewBox=\"0 0 %d %d\" role=img aria-label=\"%s\" data-left=%d data-right=%d>",
      css, width, height, HtmlText(p.chart.title), kLeft, width - kRight);
  AppendAxes(frame, svg);
  for (size_t i = 0; i < p.chart.series.size(); ++i) AppendSeries(frame, i, svg);
  absl::StrAppendFormat(&svg,
                        "<line class=cursor y1=%d y2=%d x1=0 x2=0 visibility=hidden /></svg>\n",
                        kTop, height - kBottom);
  return svg;
}

// What the page's script reads values out of.
std::string ReadoutJson(const Prepared& p) {
  std::string json =
      absl::StrCat("{\"low\": ", JsonNumber(p.x_low), ", \"high\": ", JsonNumber(p.x_high),
                   ", \"x\": ", JsonString(p.chart.x_title), ", \"series\": [");
  bool first = true;
  for (size_t i = 0; i < p.buckets.size(); ++i) {
    if (p.buckets[i].empty()) continue;
    std::string xs, ys;
    for (const Bucket& b : p.buckets[i]) {
      absl::StrAppendFormat(&xs, "%s%.8g", xs.empty() ? "" : ",", b.x);
      absl::StrAppendFormat(&ys, "%s%.4g", ys.empty() ? "" : ",", b.mean);
    }
    absl::StrAppend(&json, first ? "" : ", ", "{\"name\": ", JsonString(p.chart.series[i].name),
                    ", \"x\": [", xs, "], \"y\": [", ys, "]}");
    first = false;
  }
  return json + "]}";
}

}  // namespace

std::vector<double> Ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double step = power * (lead < 1.5 ? 1 : (lead < 3.5 ? 2 : (lead < 7.5 ? 5 : 10)));
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
    ticks.push_back(i * step);
  return ticks;
}

std::string ChartHtml(const Chart& chart, int wide_width, int height) {
  const Prepared p = Prepare(chart);
  std::string html =
      absl::StrCat("<figure data-plot=\"", HtmlText(ReadoutJson(p)), "\"><figcaption><h2>",
                   HtmlText(chart.title), "</h2> <span class=unit>", HtmlText(chart.y_title),
                   "</span><span class=legend>");
  if (chart.series.size() > 1) {
    for (const ChartSeries& series : chart.series) {
      absl::StrAppend(&html, "<span class=\"key c", series.colour,
                      series.kind == ChartSeries::Kind::kReference ? " dashed" : "", "\">",
                      HtmlText(series.name), "</span>");
    }
  }
  absl::StrAppend(&html, "</span></figcaption>\n", Svg(p, wide_width, height, "wide"),
                  Svg(p, kNarrowWidth, std::min(height, 260), "narrow"),
                  "<p class=readout></p></figure>\n");
  return html;
}

}  // namespace llm
