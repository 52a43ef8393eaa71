# A cell: writes the tables of the questions into the working folder, from the data sets that scikit-learn carries.
# The values are the same each time. (The bytes of the Excel files are not: they hold the time of writing.)
import json

import pandas as pd
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)


def write_json(name, value):
    with open(name, "w") as file:
        json.dump(value, file)


def write_excel(name, sheets):
    with pd.ExcelWriter(name, engine="openpyxl") as book:
        for sheet, frame in sheets.items():
            frame.to_excel(book, sheet_name=sheet, index=False)


def numbered(frame, name):
    frame = frame.copy()
    frame.insert(0, name, range(1, len(frame) + 1))
    return frame


# iris: a plain table, and the same flowers as nested JSON
data = load_iris(as_frame=True)
iris = data.data.copy()
iris["species"] = [str(data.target_names[code]) for code in data.target]
iris.to_csv("iris.csv", index=False)
flowers = [
    {
        "number": number,
        "species": row.species,
        "sepal": {"length": row[1], "width": row[2]},
        "petal": {"length": row[3], "width": row[4]},
    }
    for number, row in enumerate(iris.itertuples(), start=1)
]
write_json("iris.json", {"unit": "cm", "flowers": flowers})

# wine: a workbook with codes in one sheet and their names in another, and the numbers alone as JSON of columns and rows
data = load_wine(as_frame=True)
wine = data.data.rename(columns=lambda name: name.replace("_", " "))
samples = numbered(wine, "sample")
samples["class"] = data.target
classes = pd.DataFrame({"class": range(3), "class name": [str(name) for name in data.target_names]})
write_excel("wine.xlsx", {"samples": samples, "classes": classes})
write_json("wine.json", {"columns": list(wine.columns), "index": list(range(1, 179)), "data": wine.values.tolist()})

# breast cancer: JSON records, and a workbook with a sheet for each statistic
data = load_breast_cancer(as_frame=True)
cancer = numbered(data.data, "case")
cancer["diagnosis"] = [str(data.target_names[code]) for code in data.target]
write_json("cancer.json", cancer.to_dict("records"))
sheets = {}
for sheet in ["mean", "error", "worst"]:
    names = [name for name in data.data.columns if sheet in name.split()]
    plain = {name: name.replace(sheet, "").strip() for name in names}
    sheets[sheet] = cancer[["case", *names]].rename(columns=plain)
write_excel("cancer.xlsx", sheets)

# diabetes: one table, and the same in two files that share the number of the patient
data = load_diabetes(as_frame=True, scaled=False)
names = {
    "bmi": "body mass index",
    "bp": "blood pressure",
    "s1": "total cholesterol",
    "s2": "ldl",
    "s3": "hdl",
    "s4": "cholesterol ratio",
    "s5": "log triglycerides",
    "s6": "glucose",
    "target": "progression",
}
diabetes = numbered(data.frame.rename(columns=names), "patient")
diabetes[["patient", "age", "sex"]] = diabetes[["patient", "age", "sex"]].astype(int)
diabetes.to_csv("diabetes.csv", index=False)
people = ["age", "sex", "body mass index", "blood pressure"]
diabetes[["patient", *people]].to_csv("people.csv", index=False)
write_json("labs.json", diabetes.drop(columns=people)[::-1].to_dict("records"))

# linnerud: a workbook with two sheets that share the number of the subject
data = load_linnerud(as_frame=True)
exercise = numbered(data.data.astype(int), "subject")
body = numbered(data.target.astype(int), "subject")
write_excel("linnerud.xlsx", {"exercise": exercise, "body": body})

# digits: 500 pictures as rows of pixels, and 200 as nested JSON
data = load_digits()
names = [f"pixel {row} {column}" for row in range(8) for column in range(8)]
digits = pd.DataFrame(data.data[:500].astype(int), columns=names)
digits["digit"] = data.target[:500]
digits.to_csv("digits.csv", index=False)
pictures = [
    {"digit": int(digit), "image": image.astype(int).tolist()}
    for digit, image in zip(data.target[:200], data.images[:200], strict=True)
]
write_json("digits.json", pictures)

written = ["cancer.json", "cancer.xlsx", "diabetes.csv", "digits.csv", "digits.json", "iris.csv", "iris.json"]
written += ["labs.json", "linnerud.xlsx", "people.csv", "wine.json", "wine.xlsx"]
print(json.dumps(written))
