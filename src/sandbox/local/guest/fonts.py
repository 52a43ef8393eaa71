"""Glyphs of Chinese, Japanese and Korean, whichever font a program asks for."""

import dataclasses
import importlib
import logging
import os

FONT_PACKAGE, FONT_FILE = "paperang_p2_fonts_cjk", "fonts/wqy-microhei.ttc"
# what programs name to get such glyphs, on the systems that have these fonts
NAMES = [
    "Apple SD Gothic Neo", "AppleGothic", "Arial Unicode MS", "FangSong", "Heiti SC", "Heiti TC",
    "Hiragino Sans", "Hiragino Sans GB", "IPAGothic", "IPAexGothic", "KaiTi", "MS Gothic", "Malgun Gothic",
    "Meiryo", "Microsoft JhengHei", "Microsoft YaHei", "NanumGothic", "Noto Sans CJK JP", "Noto Sans CJK KR",
    "Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans JP", "Noto Sans KR", "Noto Sans SC", "PingFang SC",
    "STHeiti", "STSong", "SimHei", "SimSun", "Songti SC", "Source Han Sans CN", "Source Han Sans SC",
    "TakaoPGothic", "WenQuanYi Zen Hei", "Yu Gothic",
]  # fmt: skip


def add_to(matplotlib):
    """Makes the guest's font the last resort of every text, and lets it be asked for by other names."""
    from matplotlib import font_manager

    folder = os.path.dirname(importlib.import_module(FONT_PACKAGE).__file__)
    path = os.path.join(folder, FONT_FILE)
    fonts = font_manager.fontManager
    known = {font.name for font in fonts.ttflist}
    fonts.addfont(path)
    font = next(font for font in fonts.ttflist if font.fname == path)
    fonts.ttflist += [dataclasses.replace(font, name=name) for name in NAMES if name not in known]
    fall_back_on(font_manager.FontManager, font_manager.FontProperties(family=font.name))
    matplotlib.rcParams["axes.unicode_minus"] = False
    logging.getLogger("matplotlib.font_manager").addFilter(Once())


def fall_back_on(manager, last):
    """Styles, themes and programs set `font.family`: the last resort cannot stand there."""
    find = manager._find_fonts_by_props

    def find_with_last(self, prop, fontext="ttf", *args, **more):
        paths = find(self, prop, fontext, *args, **more)
        if fontext == "ttf":
            paths = paths + [path for path in find(self, last) if path not in paths]
        return paths

    manager._find_fonts_by_props = find_with_last


class Once(logging.Filter):
    """matplotlib tells of a font that is not there for every text that it measures."""

    def __init__(self):
        super().__init__()
        self.told = set()

    def filter(self, record):
        message = record.getMessage()
        is_new = message not in self.told
        self.told.add(message)
        return is_new
